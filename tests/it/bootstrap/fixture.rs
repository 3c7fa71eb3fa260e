//! A node to render, which tests modify.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use outrigger::bootstrap::{BootstrapError, ClusterEndpoint, LaunchContext, UserData, render};
use outrigger::model::labels::{CAPACITY_TYPE, Labels, NODE_CLASS, POOL, TAINT_UNREGISTERED};
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::bootstrap::{AgentBootstrap, Bootstrap, SecretSource};
use outrigger::model::node_class::image::{AmiFamily, ImageTerm};
use outrigger::model::node_class::kubelet::{Reserved, Signal, Threshold};
use outrigger::model::taint::{Effect, Taint};

/// The certificate authority of the test's cluster, and one with another key and subject.
pub(super) const CA: &str = include_str!("ca.pem");
pub(super) const OLD_CA: &str = include_str!("old-ca.pem");
/// A certificate of version 1, which has neither a version field nor extensions.
pub(super) const VERSION_1_CA: &str = include_str!("version-1-ca.pem");
/// The output of `openssl x509 -pubkey | openssl pkey -pubin -outform der | sha256sum`.
pub(super) const CA_HASH: &str =
    "sha256:c71343445cd41edc61ebc98b7c3d9ff121e3c43a6701015fcd16c3d656d7d9c8";
pub(super) const OLD_CA_HASH: &str =
    "sha256:7318eac61ea3438663855b11a7ec8fb4424ff52e18ce38dbec5754e414b1832d";
pub(super) const VERSION_1_CA_HASH: &str =
    "sha256:bf96a99b6c5ea3a5825f974d2a6e91ac983fc1435f445264bfaa1c288a5265d6";

pub(super) const TOKEN: &str = "abcdef.0123456789abcdef";

/// The inputs of `render`.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) class: NodeClass,
    pub(super) cluster: ClusterEndpoint,
    pub(super) labels: Labels,
    pub(super) taints: Vec<Taint>,
    pub(super) max_pods: i64,
    pub(super) image_name: Option<String>,
    pub(super) secret: Option<String>,
}

pub(super) type Change = fn(&mut Case);

pub(super) fn encoded(pem: &str) -> String {
    STANDARD.encode(pem)
}

pub(super) fn labels(all: &[(&str, &str)]) -> Labels {
    let each = all.iter();
    each.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

impl Case {
    /// A node of an EKS cluster.
    pub(super) fn of(family: AmiFamily) -> Self {
        Self {
            class: NodeClass { name: "default".into(), family, ..NodeClass::default() },
            cluster: ClusterEndpoint {
                name: "prod".to_owned(),
                endpoint: "https://ABCDEF.gr7.eu-west-1.eks.amazonaws.com".to_owned(),
                ca: encoded(CA),
                service_cidr: Some("10.100.0.0/16".to_owned()),
                dns: Some(address("10.100.0.10")),
                ipv6: false,
                version: "1.33".to_owned(),
            },
            labels: labels(&[
                (POOL, "general"),
                (NODE_CLASS, "default"),
                (CAPACITY_TYPE, "spot"),
                ("team", "blue"),
            ]),
            taints: vec![
                Taint {
                    key: "dedicated".to_owned(),
                    value: "blue".to_owned(),
                    effect: Effect::NoSchedule,
                },
                Taint::new(TAINT_UNREGISTERED, Effect::NoExecute),
            ],
            max_pods: 29,
            image_name: None,
            secret: None,
        }
    }

    /// A node of a cluster without EKS.
    pub(super) fn joining(bootstrap: Bootstrap) -> Self {
        let mut own = Self::of(AmiFamily::Custom);
        own.class.bootstrap = bootstrap;
        own.class.kubelet.kube_reserved = [
            ("cpu".to_owned(), reserved(70, "70m")),
            ("memory".to_owned(), reserved(574 << 20, "574Mi")),
        ]
        .into();
        own.cluster.endpoint = "https://api.example.com:6443".to_owned();
        own.secret = Some(TOKEN.to_owned());
        own
    }

    pub(super) fn kubeadm() -> Self {
        Self::joining(Bootstrap::Kubeadm { token: SecretSource::Minted })
    }

    pub(super) fn k3s(version: Option<&str>) -> Self {
        Self::joining(Bootstrap::K3s(agent(version)))
    }

    pub(super) fn rke2(version: Option<&str>) -> Self {
        Self::joining(Bootstrap::Rke2(agent(version)))
    }

    pub(super) fn talos(machine_config: &str) -> Self {
        let mut own = Self::joining(Bootstrap::Talos {
            machine_config: SecretSource::SsmParameter("/talos/worker".to_owned()),
        });
        own.secret = Some(machine_config.to_owned());
        own
    }

    pub(super) fn template(template: &str) -> Self {
        Self::joining(Bootstrap::Custom {
            template: template.to_owned(),
            token: Some(SecretSource::Minted),
        })
    }

    pub(super) fn with(mut self, change: Change) -> Self {
        change(&mut self);
        self
    }

    pub(super) fn render(&self) -> Result<UserData, BootstrapError> {
        let context = LaunchContext {
            labels: &self.labels,
            taints: &self.taints,
            max_pods: self.max_pods,
            image_name: self.image_name.as_deref(),
            secret: self.secret.as_deref(),
        };
        render(&self.class, &self.cluster, &context)
    }

    pub(super) fn text(&self) -> String {
        let data = self.render().expect("user data");
        String::from_utf8(data.0).expect("user data that is text")
    }

    pub(super) fn error(&self) -> String {
        self.render().expect_err("no user data").to_string()
    }
}

fn agent(version: Option<&str>) -> AgentBootstrap {
    AgentBootstrap {
        server: None,
        token: SecretSource::Minted,
        version: version.map(str::to_owned),
    }
}

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(super) fn reserved(amount: i64, text: &str) -> Reserved {
    Reserved { amount, text: text.to_owned() }
}

pub(super) fn alias(family: AmiFamily, version: &str) -> ImageTerm {
    ImageTerm::Alias { family, version: version.to_owned() }
}

/// Sets every kubelet setting that all families support.
pub(super) fn set_all_settings(case: &mut Case) {
    let own = &mut case.class.kubelet;
    own.cluster_dns = vec![address("10.100.0.99")];
    own.max_pods = Some(42);
    own.system_reserved.insert("memory".to_owned(), reserved(100 << 20, "100Mi"));
    own.kube_reserved.insert("cpu".to_owned(), reserved(90, "90m"));
    own.eviction_hard
        .insert(Signal::MemoryAvailable, Threshold::Amount(200 << 20, "200Mi".to_owned()));
    own.eviction_hard.insert(Signal::NodefsAvailable, Threshold::Share(750));
    own.eviction_soft.insert(Signal::MemoryAvailable, Threshold::Share(1000));
    own.eviction_soft_grace_period.insert(Signal::MemoryAvailable, SignedDuration::from_secs(90));
    own.eviction_max_pod_grace_period = Some(30);
    own.image_gc_high_threshold_percent = Some(80);
    own.image_gc_low_threshold_percent = Some(60);
    own.cpu_cfs_quota = Some(false);
}
