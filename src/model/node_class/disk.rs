//! Disks of a node class.
//! It must not know what is written on them.

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Device name, such as `/dev/xvda`.
    pub name: String,
    /// Size in bytes; none where a snapshot says it.
    pub size: Option<i64>,
    /// EC2's name of the volume type; none leaves it to EC2.
    pub volume_type: Option<String>,
    /// Operations per second.
    pub iops: Option<u32>,
    /// MiB per second.
    pub throughput: Option<u32>,
    /// Whether it is encrypted; none leaves it to EC2.
    pub encrypted: Option<bool>,
    /// Key it is encrypted with.
    pub kms_key_id: Option<String>,
    /// Snapshot it is made from.
    pub snapshot_id: Option<String>,
    /// MiB per second at which a snapshot is loaded, 100 to 300.
    pub initialization_rate: Option<u32>,
    /// Whether it goes with the instance; none leaves it to EC2.
    pub delete_on_termination: Option<bool>,
    /// Whether the kubelet's data is on it.
    pub root_volume: bool,
}

impl BlockDevice {
    /// The size in GiB, rounded up, as EC2 wants it.
    pub fn gib(&self) -> Option<i64> {
        const GIB: i64 = 1 << 30;
        self.size
            .map(|bytes| bytes / GIB + i64::from(bytes % GIB > 0))
    }
}
