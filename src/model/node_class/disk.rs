//! Disks of a node class.

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Device name, such as `/dev/xvda`.
    pub name: String,
    /// Size in bytes. `None` means the size of the snapshot.
    pub size: Option<i64>,
    /// EC2's name of the volume type. `None` means EC2's default.
    pub volume_type: Option<String>,
    /// Operations per second.
    pub iops: Option<u32>,
    /// MiB per second.
    pub throughput: Option<u32>,
    /// Whether the disk is encrypted. `None` means EC2's default.
    pub encrypted: Option<bool>,
    /// KMS key for its encryption.
    pub kms_key_id: Option<String>,
    /// Snapshot from which the disk is created.
    pub snapshot_id: Option<String>,
    /// MiB per second at which a snapshot is loaded, 100 to 300.
    pub initialization_rate: Option<u32>,
    /// Whether the disk is deleted with the instance. `None` means EC2's default.
    pub delete_on_termination: Option<bool>,
    /// Whether the disk holds the kubelet's data.
    pub root_volume: bool,
}

impl BlockDevice {
    /// The size in GiB, rounded up, as EC2 requires.
    pub fn size_gib(&self) -> Option<i64> {
        const GIB: i64 = 1 << 30;
        self.size.map(|bytes| bytes / GIB + i64::from(bytes % GIB > 0))
    }
}
