//! Leader election by Leases, for single clusters and groups of clusters.
//!
//! A host compares only time spans of its own clock. A Lease expires when this host has seen it
//! unchanged for its duration. A holder acts for a shorter span, counted from before the request of
//! its last renewal: [`ACTS`] and [`LASTS`] are as in Kubernetes controllers (client-go,
//! `leaderelection`). The reasons are in docs/decisions/028-leader-election.md.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::id::ClusterName;

/// Duration of a Lease without renewal.
pub const LASTS: Duration = Duration::from_secs(15);

/// How long a holder acts without renewal. Requests that the holder has sent by then complete or
/// fail before [`LASTS`] is over.
pub const ACTS: Duration = Duration::from_secs(10);

/// Interval at which the holder renews its Lease and other hosts read it.
pub const RETRY: Duration = Duration::from_secs(2);

/// Maximum lease duration, so that a wrong value blocks other hosts for no longer.
const LASTS_MAX: Duration = Duration::from_mins(5);

/// The holder fields of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The host that holds the Lease. Empty if no host does.
    pub holder: String,
    /// Renewal time by the clock of the holder. Only changes of this value are evaluated.
    pub renewed: String,
    /// The requested duration.
    pub lasts: Duration,
}

/// The owner of a Lease at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwner {
    /// No host. Any host may acquire it.
    Free,
    /// This host.
    Mine,
    /// Another host. Its Lease expires after this time unless it renews the Lease.
    Theirs(Duration),
}

/// The view of one host on the Lease of one cluster. Times are spans since an arbitrary moment.
#[derive(Clone, Debug, Default)]
pub struct LeaseObserver {
    me: String,
    /// The last state of the Lease, and when this state was first seen.
    seen: Option<(LeaseHolder, Duration)>,
}

impl LeaseObserver {
    /// Creates a candidate that has not read the Lease.
    pub fn new(me: &str) -> Self {
        Self { me: me.to_owned(), seen: None }
    }

    /// Updates the view with the Lease at `now`, or with its absence. `has_died` returns whether a
    /// holder is known to be dead, regardless of its Lease.
    pub fn observe_lease(
        &mut self,
        hold: Option<LeaseHolder>,
        now: Duration,
        has_died: impl Fn(&str) -> bool,
    ) -> LeaseOwner {
        // A deletion is not visible to the holder, which acts until it reads the Lease again.
        let hold = hold.or_else(|| self.seen.clone().map(|(holder, _)| holder)).unwrap_or_default();
        if hold.holder.is_empty() {
            self.seen = None;
            return LeaseOwner::Free;
        }
        if hold.holder == self.me {
            return LeaseOwner::Mine;
        }
        let since = match &self.seen {
            Some((holder, since)) if *holder == hold => *since,
            _ => now,
        };
        let lasts = hold.lasts.min(LASTS_MAX);
        let left = lasts.saturating_sub(now.saturating_sub(since));
        let is_over = left.is_zero() || has_died(&hold.holder);
        self.seen = Some((hold, since));
        if is_over { LeaseOwner::Free } else { LeaseOwner::Theirs(left) }
    }
}

/// State of the Lease of one cluster of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// The Lease has not been read yet.
    Unknown,
    /// The API server of the cluster does not respond, or no host may hold its Lease.
    Unreachable,
    /// No host holds the Lease.
    Free,
    /// This host holds the Lease.
    Mine,
    /// This other host holds the Lease.
    Theirs(String),
}

/// The host of a holder, which is named `HOST/CLUSTER`.
pub fn host_of(holder: &str) -> &str {
    holder.split_once('/').map_or(holder, |(host, _)| host)
}

/// Returns the cluster that this host requests, if each cluster is led separately. It is the first
/// cluster of the host that leads the most clusters, which must be at least two more than this host
/// leads. With a smaller difference, the handover would only swap the roles of the two hosts.
pub fn cluster_to_request(company: &BTreeMap<ClusterName, LeaseStatus>) -> Option<&ClusterName> {
    let (mine, others) = led_clusters(company)?;
    let most_led = others.into_values().max_by_key(Vec::len)?;
    let first = most_led.first().copied()?;
    (most_led.len() >= mine + 2).then_some(first)
}

/// Returns whether this host hands one of its clusters over to a requesting host.
pub fn hands_over_to(host: &str, company: &BTreeMap<ClusterName, LeaseStatus>) -> bool {
    led_clusters(company).is_some_and(|(mine, others)| {
        let count = others.get(host).map_or(0, Vec::len);
        mine >= count + 2
    })
}

/// Number of clusters that this host leads, and the clusters of each other host. `None` before all
/// Leases are known.
fn led_clusters(
    company: &BTreeMap<ClusterName, LeaseStatus>,
) -> Option<(usize, BTreeMap<&str, Vec<&ClusterName>>)> {
    let mut mine = 0;
    let mut others: BTreeMap<&str, Vec<&ClusterName>> = BTreeMap::new();
    for (name, place) in company {
        match place {
            LeaseStatus::Unknown => return None,
            LeaseStatus::Mine => mine += 1,
            LeaseStatus::Theirs(host) => others.entry(host).or_default().push(name),
            LeaseStatus::Unreachable | LeaseStatus::Free => {}
        }
    }
    Some((mine, others))
}

/// Returns whether a host may hold the Lease of a reachable cluster in a group. The host that leads
/// the first reachable cluster, by name, acquires the other clusters of the group. All other hosts
/// release them.
pub fn may_hold(cluster: &ClusterName, company: &BTreeMap<ClusterName, LeaseStatus>) -> bool {
    let mut places = company.iter();
    match places.find(|(name, place)| *name == cluster || **place != LeaseStatus::Unreachable) {
        None => true,
        Some((first, _)) if first == cluster => true,
        Some((_, place)) => *place == LeaseStatus::Mine,
    }
}

/// Why a leader hands a cluster over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartingReason {
    /// Another host requested the cluster.
    Asked,
    /// This host requested the cluster, but its engine makes no decisions.
    Unfit,
}

impl PartingReason {
    /// The reason, for logs.
    pub fn as_words(self) -> &'static str {
        match self {
            Self::Asked => "a host that leads fewer clusters requested it",
            Self::Unfit => "this host requested it and cannot get it ready",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{
        ACTS, LASTS, LASTS_MAX, LeaseHolder, LeaseObserver, LeaseOwner, LeaseStatus, RETRY,
        cluster_to_request, hands_over_to, may_hold,
    };
    use crate::model::id::ClusterName;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lease_of(holder: &str, renewed: &str) -> LeaseHolder {
        LeaseHolder { holder: holder.to_owned(), renewed: renewed.to_owned(), lasts: LASTS }
    }

    fn no_holder_died(_: &str) -> bool {
        false
    }

    #[test]
    fn lease_expires_when_unchanged_for_its_duration() {
        let mut observer = LeaseObserver::new("b");
        let mut observe = |renewed, now| {
            observer.observe_lease(Some(lease_of("a", renewed)), seconds(now), no_holder_died)
        };
        assert_eq!(
            observe("1", 100),
            LeaseOwner::Theirs(seconds(15)),
            "the first reading starts the duration"
        );
        assert_eq!(observe("1", 110), LeaseOwner::Theirs(seconds(5)));
        assert_eq!(observe("2", 112), LeaseOwner::Theirs(seconds(15)), "it was renewed");
        assert_eq!(observe("2", 126), LeaseOwner::Theirs(seconds(1)));
        assert_eq!(observe("2", 127), LeaseOwner::Free);
    }

    #[test]
    fn lease_owner_depends_on_its_holder() {
        let mut observer = LeaseObserver::new("b");
        assert_eq!(
            observer.observe_lease(Some(lease_of("", "")), seconds(0), no_holder_died),
            LeaseOwner::Free
        );
        assert_eq!(
            observer.observe_lease(Some(lease_of("b", "1")), seconds(0), no_holder_died),
            LeaseOwner::Mine
        );
        let died = |who: &str| who == "a";
        assert_eq!(
            observer.observe_lease(Some(lease_of("a", "1")), seconds(0), died),
            LeaseOwner::Free
        );
        let theirs = observer.observe_lease(Some(lease_of("c", "1")), seconds(0), died);
        assert_eq!(theirs, LeaseOwner::Theirs(LASTS));
        let c = observer.observe_lease(Some(lease_of("c", "1")), seconds(14), died);
        assert_eq!(c, LeaseOwner::Theirs(seconds(1)));
        let other = observer.observe_lease(Some(lease_of("d", "1")), seconds(14), died);
        assert_eq!(other, LeaseOwner::Theirs(LASTS), "a new holder starts the duration again");
    }

    #[test]
    fn deleted_lease_belongs_to_its_holder_until_it_expires() {
        let mut observer = LeaseObserver::new("b");
        assert_eq!(
            observer.observe_lease(None, seconds(0), no_holder_died),
            LeaseOwner::Free,
            "there was never a Lease"
        );
        observer.observe_lease(Some(lease_of("a", "1")), seconds(0), no_holder_died);
        assert_eq!(
            observer.observe_lease(None, seconds(5), no_holder_died),
            LeaseOwner::Theirs(seconds(10))
        );
        assert_eq!(observer.observe_lease(None, seconds(15), no_holder_died), LeaseOwner::Free);
        observer.observe_lease(Some(lease_of("a", "2")), seconds(20), no_holder_died);
        let released = observer.observe_lease(Some(lease_of("", "2")), seconds(21), no_holder_died);
        assert_eq!(released, LeaseOwner::Free, "the holder released it");
        assert_eq!(observer.observe_lease(None, seconds(22), no_holder_died), LeaseOwner::Free);
    }

    #[test]
    fn excessive_lease_duration_is_capped() {
        let mut observer = LeaseObserver::new("b");
        let mut long = lease_of("a", "1");
        long.lasts = Duration::from_secs(1 << 40);
        let owner = observer.observe_lease(Some(long), seconds(0), no_holder_died);
        assert_eq!(owner, LeaseOwner::Theirs(LASTS_MAX));
    }

    #[test]
    fn failover_takes_less_than_twenty_seconds() {
        // The last renewal is observed within one retry interval, and its expiry within another.
        assert!(RETRY + LASTS + RETRY < seconds(20));
        assert!(ACTS + RETRY < LASTS);
    }

    #[test]
    fn clusters_led_together_follow_the_first_reachable_one() {
        use LeaseStatus::{Free, Mine, Unknown, Unreachable};
        let theirs = || LeaseStatus::Theirs("x".to_owned());
        let may_hold_each = |held: [LeaseStatus; 3]| {
            let names = ["a", "b", "c"].map(|name| name.into());
            let statuses: BTreeMap<_, _> = names.clone().into_iter().zip(held).collect();
            names.map(|name| may_hold(&name, &statuses))
        };
        for (held, expect) in [
            ([Unknown, Free, Free], [true, false, false]),
            ([Free, Free, Free], [true, false, false]),
            ([Mine, Free, Free], [true, true, true]),
            ([Mine, theirs(), Mine], [true, true, true]),
            ([theirs(), Mine, Free], [true, false, false]),
            ([Unreachable, Free, Free], [true, true, false]),
            ([Unreachable, Mine, Free], [true, true, true]),
            ([Unreachable, theirs(), Mine], [true, true, false]),
            ([Unreachable, Unreachable, Unreachable], [true, true, true]),
        ] {
            assert_eq!(may_hold_each(held.clone()), expect, "{held:?}");
        }
    }

    /// The leaders of the clusters `0`, `1` and so on: `m` is this host, `f` no host, `?` unknown,
    /// `-` unreachable, and any other letter is the host of that name.
    fn statuses(leaders: &str) -> BTreeMap<ClusterName, LeaseStatus> {
        let status = |letter: char| match letter {
            'm' => LeaseStatus::Mine,
            'f' => LeaseStatus::Free,
            '?' => LeaseStatus::Unknown,
            '-' => LeaseStatus::Unreachable,
            host => LeaseStatus::Theirs(host.to_string()),
        };
        let named = leaders.chars().enumerate();
        let named = named.map(|(at, letter)| (ClusterName(at.to_string()), status(letter)));
        named.collect()
    }

    #[test]
    fn host_requests_handover_from_a_host_with_two_more_clusters() {
        for (leaders, expect) in [
            ("a", None),
            ("aa", Some("0")),
            ("ma", None),
            ("maa", None),
            ("maaa", Some("1")),
            ("abbmaa", Some("0")),
            ("bbaab-f", Some("0")),
            ("aa?", None),
            ("mm", None),
            ("", None),
        ] {
            let statuses = statuses(leaders);
            let requested = cluster_to_request(&statuses).map(|cluster| cluster.as_str());
            assert_eq!(requested, expect, "{leaders}");
        }
    }

    #[test]
    fn host_hands_over_clusters_until_it_leads_one_more() {
        for (leaders, hands_over) in [
            ("mm", true),
            ("m", false),
            ("mma", false),
            ("mmma", true),
            ("mm?", false),
            ("aamm", false),
            ("bbmm", true),
        ] {
            assert_eq!(hands_over_to("a", &statuses(leaders)), hands_over, "{leaders}");
        }
    }
}
