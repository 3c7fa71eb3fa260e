//! Names as types of their own, so that a pool's name is never taken for a node's.
//! It must not know what the names refer to.

use std::fmt;

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type! {
    /// The name of a watched cluster, as configured.
    ClusterName
}
name_type! {
    /// Which cluster an API server is of: `ns:` and the UID of the Namespace `kube-system`, which
    /// no two clusters share and no request can delete. A copy of the cluster's etcd has the same.
    ClusterUid
}
name_type! {
    /// The name of a pool, the value of the label `karpenter.sh/nodepool`.
    PoolName
}
name_type! {
    /// The name of a node class.
    NodeClassName
}
name_type! {
    /// The id of a claim: unique for ever, the client token of its launch, a tag of its instance.
    ClaimId
}
name_type! {
    /// The id of an instance as the provider gives it (`i-…`).
    InstanceId
}
name_type! {
    /// The name of a Node object.
    NodeName
}
name_type! {
    /// The name of an instance type (`m7i.large`).
    TypeName
}
name_type! {
    /// The id of a capacity reservation (`cr-…`).
    ReservationId
}
name_type! {
    /// The name of a zone (`us-east-1a`).
    Zone
}

/// Namespace and name: how a namespaced object is known within a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

/// The key of a pod.
pub type PodKey = ObjectKey;

impl ObjectKey {
    /// A key from its two parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Where the Lease of a cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Default for LeaseName {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "outrigger".to_owned(),
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
