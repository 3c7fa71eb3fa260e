//! The identity of this process as a Lease holder, and the identity of the previous process on this
//! host.
//!
//! A process that has died still holds its Leases until they expire. The next process on the same
//! host need not wait for this: it acquires the file lock that the dead process held, and reads the
//! name of the dead process from the file. If the lock cannot be taken or there is no runtime
//! directory, every process counts as alive. The file must not outlive the host, and a copy of the
//! host's disk must not contain it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::clock;
use crate::model::id::ClusterName;

/// Name of the file that contains the name of the process that holds the file's lock.
const FILE: &str = "holder";
/// Maximum length of a name, in characters.
const NAME_MAX: u64 = 200;
/// Maximum length of the host name in a holder name.
const HOST_MAX: usize = 63;

/// The name by which this process holds Leases: `HOST_RANDOM`.
#[derive(Clone, Debug)]
pub(crate) struct HolderIdentity {
    name: String,
    /// The name of the process that held the lock before this process.
    dead: Option<String>,
    /// Number of leadership terms of this process, for all clusters.
    terms: Arc<AtomicU64>,
    /// The file lock, which this process holds while the identity is in use.
    _lock: Option<Arc<File>>,
}

impl HolderIdentity {
    /// Creates an identity. Reads the identity of the previous process, if there is a runtime
    /// directory.
    pub(crate) fn new(host: &str, directory: Option<&Path>) -> Self {
        let host: String = host
            .trim()
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.'))
            .take(HOST_MAX)
            .collect();
        let mut bytes = [0; 12];
        let random: String = match clock::fill_random(&mut bytes) {
            Ok(()) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            Err(_) => format!("{:016x}", clock::random_seed()),
        };
        let name = format!("{host}_{random}");
        let (dead, lock) =
            match directory.map(|directory| acquire_lock(&directory.join(FILE), &name)) {
                Some(Ok((dead, lock))) => (dead, Some(Arc::new(lock))),
                Some(Err(error)) => {
                    tracing::info!(%error, "cannot identify the previous process, waiting for its \
                                        Leases to expire");
                    (None, None)
                }
                None => (None, None),
            };
        Self { name, dead, terms: Arc::default(), _lock: lock }
    }

    /// The holder name for the Lease of a cluster.
    pub(crate) fn holder_name(&self, cluster: &ClusterName) -> String {
        format!("{}/{cluster}", self.name)
    }

    /// Returns the number of a new term, greater than all earlier terms of this process.
    pub(crate) fn next_term(&self) -> u64 {
        self.terms.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns whether a holder was a process of this host that no longer runs.
    pub(crate) fn has_died(&self, holder: &str) -> bool {
        let name = holder.split_once('/').map(|(name, _)| name);
        name.is_some() && name == self.dead.as_deref()
    }
}

/// Acquires the lock and writes the name of this process to the file. Returns the previous name in
/// the file.
fn acquire_lock(path: &Path, name: &str) -> io::Result<(Option<String>, File)> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path)?;
    file.try_lock()?;
    let mut before = String::new();
    Read::by_ref(&mut file).take(NAME_MAX).read_to_string(&mut before)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(name.as_bytes())?;
    Ok((Some(before).filter(|name| !name.is_empty()), file))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::HolderIdentity;

    #[test]
    fn previous_process_is_dead_once_its_lock_is_released() {
        let directory = TempDir::new().expect("a directory");
        let start = || HolderIdentity::new("a-host\n", Some(directory.path()));
        let first = start();
        let name = first.holder_name(&"prod".into());
        assert!(name.starts_with("a-host_") && name.ends_with("/prod"), "{name}");
        assert!(!first.has_died(&name));
        let second = start();
        assert!(!second.has_died(&name), "the first process still runs");
        assert_ne!(second.holder_name(&"prod".into()), name);
        drop(first);
        let third = start();
        assert!(third.has_died(&name));
        assert!(third.has_died(&name.replace("prod", "lab")), "for every cluster that it led");
        for other in ["", "/", "/prod", "a-host_", "a-host_/prod", &format!("{name}x/prod")] {
            let same = other.starts_with(&name);
            assert_eq!(third.has_died(other), same, "{other:?}");
        }
        assert!(
            !third.has_died(&second.holder_name(&"prod".into())),
            "the second process never had the lock"
        );
        drop(third);
        assert!(!start().has_died(&name), "only the last name is remembered");
    }

    #[test]
    fn no_holder_counts_as_dead_without_a_state_directory() {
        let identity = HolderIdentity::new("", None);
        assert!(!identity.has_died(&identity.holder_name(&"a".into())));
        assert!(!identity.has_died("/a"));
        let nowhere = HolderIdentity::new("", Some("/nonexistent".as_ref()));
        assert!(!nowhere.has_died("/a"));
    }
}
