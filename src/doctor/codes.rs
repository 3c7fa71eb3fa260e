//! Stable codes of doctor findings that have no code elsewhere.

/// The finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorCode {
    /// The configuration names no cluster.
    NoCluster,
    /// A cluster has no pool.
    NoPool,
    /// A file does not exist.
    FileMissing,
    /// A file cannot be read or is not a regular file.
    FileUnreadable,
    /// All users can read a file that contains a secret.
    FileExposed,
    /// The daemon's user cannot read a file.
    FileOfRoot,
    /// The systemd unit hides a path from the daemon.
    HomeHidden,
    /// The API server is too old.
    VersionOld,
    /// An RBAC permission is missing.
    RightMissing,
    /// The Lease of Outrigger cannot be read.
    LeaseUnreadable,
    /// It cannot be determined whether Karpenter is active.
    KarpenterUnseen,
    /// A different autoscaler launches nodes for the same pods.
    AutoscalerAtWork,
    /// Requests of the daemon share a FlowSchema with all other clients.
    RequestsUnranked,
    /// A check timed out.
    CheckLate,
    /// AWS rejects the credentials.
    AwsIdentity,
    /// An AWS call failed.
    AwsCall,
    /// The interruption queue does not exist.
    QueueMissing,
    /// No subnet has a free address.
    SubnetsFull,
    /// A zone has few free addresses.
    SubnetsShort,
    /// A node class is not ready for an unspecified reason.
    ClassUnready,
}

impl DoctorCode {
    /// The stable name.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoCluster => "no-cluster",
            Self::NoPool => "no-pool",
            Self::FileMissing => "file-missing",
            Self::FileUnreadable => "file-unreadable",
            Self::FileExposed => "file-exposed",
            Self::FileOfRoot => "file-of-root",
            Self::HomeHidden => "home-hidden",
            Self::VersionOld => "version-old",
            Self::RightMissing => "permission-missing",
            Self::LeaseUnreadable => "lease-unreadable",
            Self::KarpenterUnseen => "karpenter-lease-unreadable",
            Self::AutoscalerAtWork => "autoscaler-at-work",
            Self::RequestsUnranked => "flow-schema-missing",
            Self::CheckLate => "check-timeout",
            Self::AwsIdentity => "aws-identity",
            Self::AwsCall => "aws-call",
            Self::QueueMissing => "queue-missing",
            Self::SubnetsFull => "subnets-full",
            Self::SubnetsShort => "subnets-short",
            Self::ClassUnready => "node-class-not-ready",
        }
    }
}
