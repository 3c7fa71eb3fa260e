//! What may be wrong with a set-up beside what has a name of its own elsewhere, by stable names.
//! It must not know how any of it is found out, nor what puts it right.

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoctorCode {
    /// The configuration names no cluster.
    NoCluster,
    /// A cluster has no pool.
    NoPool,
    /// A file is not there.
    FileMissing,
    /// A file may not be read, or is none.
    FileUnreadable,
    /// Others can read a file with a secret in it.
    FileExposed,
    /// The daemon's user cannot read a file.
    FileOfRoot,
    /// The unit hides a path.
    HomeHidden,
    /// The API server is too old.
    VersionOld,
    /// The user may not do something.
    RightMissing,
    /// Our Lease cannot be read.
    LeaseUnreadable,
    /// Whether Karpenter is at work cannot be known.
    KarpenterUnseen,
    /// Somebody else makes nodes for the same pods.
    AutoscalerAtWork,
    /// Our requests wait among everybody's.
    RequestsUnranked,
    /// A check was not over in time.
    CheckLate,
    /// AWS does not know us.
    AwsIdentity,
    /// AWS does not answer what is asked.
    AwsCall,
    /// The queue of interruptions is not there.
    QueueMissing,
    /// No subnet has a free address.
    SubnetsFull,
    /// A zone is short of addresses.
    SubnetsShort,
    /// A node class is not ready, for a reason that nobody says.
    ClassUnready,
}

impl DoctorCode {
    /// The stable name.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::NoCluster => "no-cluster",
            Self::NoPool => "no-pool",
            Self::FileMissing => "file-missing",
            Self::FileUnreadable => "file-unreadable",
            Self::FileExposed => "file-exposed",
            Self::FileOfRoot => "file-of-root",
            Self::HomeHidden => "home-hidden",
            Self::VersionOld => "version-old",
            Self::RightMissing => "right-missing",
            Self::LeaseUnreadable => "lease-unreadable",
            Self::KarpenterUnseen => "karpenter-unseen",
            Self::AutoscalerAtWork => "autoscaler-at-work",
            Self::RequestsUnranked => "requests-unranked",
            Self::CheckLate => "check-late",
            Self::AwsIdentity => "aws-identity",
            Self::AwsCall => "aws-call",
            Self::QueueMissing => "queue-missing",
            Self::SubnetsFull => "subnets-full",
            Self::SubnetsShort => "subnets-short",
            Self::ClassUnready => "class-unready",
        }
    }
}
