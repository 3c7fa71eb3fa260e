//! Decides whether another autoscaler is active, by the Lease that its leader holds.
//!
//! As with Outrigger's Lease, only measured time spans are compared, never the times in the Lease:
//! docs/decisions/031-adoption.md.

use std::time::Duration;

use crate::coordination::leader_election::{LASTS, LeaseHolder, LeaseObserver, LeaseOwner};

/// The other autoscaler is inactive once its Lease had no holder for this long. For a shorter time,
/// the Lease has no holder when a replica takes over, or when the only pod is recreated.
pub const FREE: Duration = Duration::from_secs(60);

/// Activity of the other autoscaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoscalerActivity {
    /// Not known before the next read of the Lease.
    #[default]
    Unknown,
    /// Not known, because the API server does not respond.
    Unseen,
    /// The other autoscaler is inactive.
    Gone,
    /// The other autoscaler is active, or was active within [`FREE`].
    Goes,
}

/// The state of one Lease over several reads. Times are spans since an arbitrary moment.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    candidate: LeaseObserver,
    /// The last state of the Lease, if it exists.
    last: Option<LeaseHolder>,
    /// When it was last read.
    read: Option<Duration>,
    /// Since when the Lease has had no holder, if it had one before.
    free: Option<Duration>,
    held: bool,
    work: AutoscalerActivity,
}

impl Watched {
    /// Records that the API server did not respond. The last state remains valid for [`LASTS`].
    pub fn on_read_failure(&mut self, now: Duration) -> AutoscalerActivity {
        if self.read.is_none_or(|read| now.saturating_sub(read) > LASTS) {
            self.work = AutoscalerActivity::Unseen;
        }
        self.work
    }

    /// Records the Lease, or its absence. `old` means that its renewal time is long ago. This is
    /// evaluated once two reads have found the Lease unchanged.
    pub fn on_lease_read(
        &mut self,
        hold: Option<LeaseHolder>,
        old: bool,
        now: Duration,
    ) -> AutoscalerActivity {
        let (first, same) = (self.read.is_none(), self.last == hold);
        (self.read, self.last) = (Some(now), hold.clone());
        self.work = match hold {
            None if !self.held => AutoscalerActivity::Gone,
            Some(_) if old && first => AutoscalerActivity::Unknown,
            Some(_) if old && same => AutoscalerActivity::Gone,
            hold => match self.candidate.observe_lease(hold, now, |_| false) {
                LeaseOwner::Theirs(_) | LeaseOwner::Mine => {
                    (self.held, self.free) = (true, None);
                    AutoscalerActivity::Goes
                }
                LeaseOwner::Free => {
                    let since = *self.free.get_or_insert(now);
                    if now.saturating_sub(since) < FREE {
                        AutoscalerActivity::Goes
                    } else {
                        AutoscalerActivity::Gone
                    }
                }
            },
        };
        self.work
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AutoscalerActivity, Watched};
    use crate::coordination::leader_election::{LASTS, LeaseHolder};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lease_of(holder: &str, renewed: &str) -> Option<LeaseHolder> {
        Some(LeaseHolder { holder: holder.to_owned(), renewed: renewed.to_owned(), lasts: LASTS })
    }

    #[test]
    fn missing_lease_means_no_other_autoscaler() {
        let mut watched = Watched::default();
        assert_eq!(watched.on_lease_read(None, false, at(0)), AutoscalerActivity::Gone);
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), false, at(5)),
            AutoscalerActivity::Goes,
            "it starts"
        );
    }

    #[test]
    fn other_autoscaler_is_gone_after_a_minute_without_a_holder() {
        let mut watched = Watched::default();
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), false, at(0)),
            AutoscalerActivity::Goes
        );
        assert_eq!(
            watched.on_lease_read(lease_of("", "1"), false, at(10)),
            AutoscalerActivity::Goes,
            "it released the Lease"
        );
        assert_eq!(
            watched.on_lease_read(lease_of("l", "2"), false, at(12)),
            AutoscalerActivity::Goes,
            "its replica takes over"
        );
        assert_eq!(
            watched.on_lease_read(lease_of("", "3"), false, at(20)),
            AutoscalerActivity::Goes
        );
        assert_eq!(
            watched.on_lease_read(lease_of("", "3"), false, at(79)),
            AutoscalerActivity::Goes
        );
        assert_eq!(
            watched.on_lease_read(lease_of("", "3"), false, at(80)),
            AutoscalerActivity::Gone
        );
        // It stops without releasing its Lease.
        let mut watched = Watched::default();
        for (seconds, expect) in [
            (0, AutoscalerActivity::Goes),
            (14, AutoscalerActivity::Goes),
            (15, AutoscalerActivity::Goes),
        ] {
            assert_eq!(watched.on_lease_read(lease_of("k", "1"), false, at(seconds)), expect);
        }
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), false, at(75)),
            AutoscalerActivity::Gone
        );
        // A user deletes the Lease of an active autoscaler.
        let mut watched = Watched::default();
        watched.on_lease_read(lease_of("k", "1"), false, at(0));
        assert_eq!(watched.on_lease_read(None, false, at(2)), AutoscalerActivity::Goes);
        assert_eq!(watched.on_lease_read(None, false, at(15)), AutoscalerActivity::Goes);
        assert_eq!(watched.on_lease_read(None, false, at(75)), AutoscalerActivity::Gone);
    }

    #[test]
    fn old_lease_has_no_holder_unless_it_is_renewed() {
        let mut watched = Watched::default();
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), true, at(0)),
            AutoscalerActivity::Unknown
        );
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), true, at(2)),
            AutoscalerActivity::Gone
        );
        // One of the two clocks is wrong.
        let mut watched = Watched::default();
        assert_eq!(
            watched.on_lease_read(lease_of("k", "1"), true, at(0)),
            AutoscalerActivity::Unknown
        );
        assert_eq!(
            watched.on_lease_read(lease_of("k", "2"), true, at(2)),
            AutoscalerActivity::Goes
        );
        assert_eq!(
            watched.on_lease_read(lease_of("k", "3"), true, at(4)),
            AutoscalerActivity::Goes
        );
    }

    #[test]
    fn read_failure_keeps_the_last_activity_briefly() {
        let mut watched = Watched::default();
        assert_eq!(
            watched.on_read_failure(at(0)),
            AutoscalerActivity::Unseen,
            "the Lease was never read"
        );
        assert_eq!(watched.on_lease_read(None, false, at(1)), AutoscalerActivity::Gone);
        assert_eq!(watched.on_read_failure(at(16)), AutoscalerActivity::Gone);
        assert_eq!(watched.on_read_failure(at(17)), AutoscalerActivity::Unseen);
        assert_eq!(watched.on_lease_read(None, false, at(18)), AutoscalerActivity::Gone);
        watched.on_lease_read(lease_of("k", "1"), false, at(20));
        assert_eq!(watched.on_read_failure(at(22)), AutoscalerActivity::Goes);
    }
}
