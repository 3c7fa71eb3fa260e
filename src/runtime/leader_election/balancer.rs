//! What this host knows of the Leases of all its clusters: which of them it may hold, asks for and
//! gives away. It must not know how a Lease is read or written.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::STEADY;
use crate::coordination::leader_election::{LeaseStatus, asks_for, gives_to, may_hold};
use crate::host::clock;
use crate::model::id::ClusterName;

/// A host that has given back what it had asked for asks for nothing for so long, and for twice as
/// long after each further time.
const SHY: Duration = Duration::from_mins(30);
/// How often that doubles: to 16 hours.
const SHY_MAX: u32 = 5;

/// What is known of the Leases of all clusters here that are managed.
#[derive(Debug, Default)]
pub(crate) struct LeaseBalancer(watch::Sender<LeaseTable>);

/// What is known, and when it changed.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    /// Whether all of them are led by one host.
    together: bool,
    /// When any of this was otherwise last.
    changed: Option<Instant>,
    places: BTreeMap<ClusterName, LeaseStatus>,
    /// Those that this host leads whose engines do not decide yet, or not any more, since when.
    unwell: BTreeMap<ClusterName, Instant>,
    /// How often in a row this host has given back what it had asked for, and when last.
    returned: Option<(u32, Instant)>,
}

impl LeaseTable {
    /// Whether this host asks for nothing, since it has got nowhere with what it had asked for.
    fn is_shy(&self) -> bool {
        self.returned.is_some_and(|(times, at)| {
            let doubled = times.saturating_sub(1).min(SHY_MAX);
            at.elapsed() < SHY.saturating_mul(1 << doubled)
        })
    }
}

impl LeaseBalancer {
    /// What tells when any of this is otherwise.
    pub(super) fn news(&self) -> watch::Receiver<LeaseTable> {
        self.0.subscribe()
    }

    /// Which clusters there are, and whether they are led by one host.
    pub(crate) fn configure(&self, together: bool, clusters: &[ClusterName]) {
        self.0.send_modify(|known| {
            known.together = together;
            known.changed = Some(clock::monotonic());
            known.places.retain(|name, _| clusters.contains(name));
            known.unwell.retain(|name, _| clusters.contains(name));
            for name in clusters {
                known
                    .places
                    .entry(name.clone())
                    .or_insert(LeaseStatus::Unknown);
            }
        });
    }

    /// Takes in how it is with one of them, and says whether this host may hold its Lease.
    pub(super) fn take(&self, cluster: &ClusterName, place: LeaseStatus) -> bool {
        self.0
            .send_if_modified(|known| match known.places.get_mut(cluster) {
                Some(own) if *own != place => {
                    *own = place;
                    known.changed = Some(clock::monotonic());
                    true
                }
                _ => false,
            });
        let known = self.0.borrow();
        !known.together || may_hold(cluster, &known.places)
    }

    /// Whether this host asks whoever leads a cluster for it.
    pub(super) fn asks_for(&self, cluster: &ClusterName) -> bool {
        let known = self.0.borrow();
        let is_steady = known.changed.is_some_and(|own| own.elapsed() >= STEADY);
        // A host that does not get on with what it has would do so with no more.
        let is_well = known.unwell.is_empty();
        let may_ask = is_steady && is_well && !known.is_shy() && !known.together;
        may_ask && asks_for(&known.places) == Some(cluster)
    }

    /// Takes in whether the engine of a cluster, which this host leads, decides.
    pub(super) fn tell_well(&self, cluster: &ClusterName, well: bool) {
        self.0.send_if_modified(|known| {
            if well {
                known.unwell.remove(cluster);
            } else {
                let since = known.unwell.entry(cluster.clone());
                since.or_insert_with(clock::monotonic);
            }
            false
        });
    }

    /// Whether the engine of a cluster has not decided for so long.
    pub(super) fn is_unwell_for(&self, cluster: &ClusterName, span: Duration) -> bool {
        let known = self.0.borrow();
        let since = known.unwell.get(cluster);
        since.is_some_and(|own| own.elapsed() >= span)
    }

    /// A cluster that this host had asked for, and leads since then, has become ready.
    pub(super) fn tell_fit(&self, since: Instant) {
        self.0.send_if_modified(|known| {
            known.returned = known.returned.filter(|(_, at)| since < *at);
            false
        });
    }

    /// One of them was given back.
    pub(super) fn tell_returned(&self) {
        self.0.send_if_modified(|known| {
            let times = known.returned.map_or(0, |(times, _)| times);
            // What is given back for one cause counts once.
            let times = times + u32::from(!known.is_shy());
            known.returned = Some((times, clock::monotonic()));
            false
        });
    }

    /// Whether this host gives a cluster to another that has asked for it.
    pub(super) fn gives_to(&self, host: &str) -> bool {
        let known = self.0.borrow();
        !known.together && gives_to(host, &known.places)
    }
}
