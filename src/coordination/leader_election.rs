//! Who leads a cluster: what a host makes of the Lease it reads, and of those of clusters that are
//! led together. It must not know how a Lease is read or written, nor what a leader does.
//!
//! A host trusts no clock but its own, and that only for spans: a Lease is over when this host has
//! seen it unchanged for as long as its holder asked for. A holder acts for a shorter span, counted
//! from before it asked for its last renewal: [`ACTS`] and [`LASTS`] are as in Kubernetes' own
//! controllers (client-go, `leaderelection`). Why: docs/decisions/028-who-leads.md.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::id::ClusterName;

/// How long a Lease lasts without a renewal.
pub const LASTS: Duration = Duration::from_secs(15);

/// How long a holder acts without a renewal. What it has sent by then is answered before
/// [`LASTS`] is over, or not at all.
pub const ACTS: Duration = Duration::from_secs(10);

/// How often a holder renews its Lease, and others look at it.
pub const RETRY: Duration = Duration::from_secs(2);

/// The longest lease duration that counts: one wrong value keeps other hosts out for no longer.
const LASTS_MAX: Duration = Duration::from_mins(5);

/// What a Lease says of who holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The host that holds it; empty if none does.
    pub holder: String,
    /// When it was renewed by the holder's clock: only whether it changes counts.
    pub renewed: String,
    /// For how long it was asked for.
    pub lasts: Duration,
}

/// Whom a Lease belongs to at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwner {
    /// To no host: any may take it.
    Free,
    /// To this host.
    Mine,
    /// To another, for so long unless it is renewed.
    Theirs(Duration),
}

/// A host as it tries for the Lease of one cluster. Times are spans since any one moment.
#[derive(Clone, Debug)]
pub struct LeaseObserver {
    me: String,
    /// What the Lease said last, and when it was first seen to say so.
    seen: Option<(LeaseHolder, Duration)>,
}

impl LeaseObserver {
    /// One that has seen nothing yet.
    pub fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            seen: None,
        }
    }

    /// Takes in what the Lease says at `now`, or that there is none; `has_died` tells that a holder
    /// cannot act any more, whatever its Lease says.
    pub fn see(
        &mut self,
        hold: Option<LeaseHolder>,
        now: Duration,
        has_died: impl Fn(&str) -> bool,
    ) -> LeaseOwner {
        // A deletion does not reach the holder, which acts until it reads the Lease again.
        let known = || self.seen.clone().map(|(known, _)| known);
        let hold = hold.or_else(known).unwrap_or_default();
        if hold.holder.is_empty() {
            self.seen = None;
            return LeaseOwner::Free;
        }
        if hold.holder == self.me {
            return LeaseOwner::Mine;
        }
        let since = match &self.seen {
            Some((known, since)) if *known == hold => *since,
            _ => now,
        };
        let lasts = hold.lasts.min(LASTS_MAX);
        let left = lasts.saturating_sub(now.saturating_sub(since));
        let is_over = left.is_zero() || has_died(&hold.holder);
        self.seen = Some((hold, since));
        if is_over {
            LeaseOwner::Free
        } else {
            LeaseOwner::Theirs(left)
        }
    }
}

/// What is known of the Lease of one of the clusters that are led together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// It has not been read yet.
    Unknown,
    /// Its cluster does not answer, or no host may hold its Lease.
    Unreachable,
    /// Nobody holds it.
    Free,
    /// This host does.
    Mine,
    /// This other host does.
    Theirs(String),
}

/// The host that a holder of a Lease is on: it is named `HOST/CLUSTER`.
pub fn host_of(holder: &str) -> &str {
    holder.split_once('/').map_or(holder, |(host, _)| host)
}

/// The cluster that this host asks for, where each is led by itself: the first of whoever leads the
/// most, if that is two more than it leads itself at least. One fewer would only change places.
pub fn asks_for(company: &BTreeMap<ClusterName, LeaseStatus>) -> Option<&ClusterName> {
    let (mine, theirs) = led(company)?;
    let (_, most) = theirs.into_iter().max_by_key(|(_, own)| own.len())?;
    let first = most.first().copied()?;
    (most.len() >= mine + 2).then_some(first)
}

/// Whether this host gives one of its clusters to another that asks for it.
pub fn gives_to(host: &str, company: &BTreeMap<ClusterName, LeaseStatus>) -> bool {
    led(company).is_some_and(|(mine, theirs)| {
        let has = theirs.get(host).map_or(0, Vec::len);
        mine >= has + 2
    })
}

/// How many clusters this host leads, and which each of the others does; none before all is known.
fn led(
    company: &BTreeMap<ClusterName, LeaseStatus>,
) -> Option<(usize, BTreeMap<&str, Vec<&ClusterName>>)> {
    let mut mine = 0;
    let mut theirs: BTreeMap<&str, Vec<&ClusterName>> = BTreeMap::new();
    for (name, place) in company {
        match place {
            LeaseStatus::Unknown => return None,
            LeaseStatus::Mine => mine += 1,
            LeaseStatus::Theirs(host) => theirs.entry(host).or_default().push(name),
            LeaseStatus::Unreachable | LeaseStatus::Free => {}
        }
    }
    Some((mine, theirs))
}

/// Whether a host may hold the Lease of a cluster, which it can reach, that is led together with
/// others: all follow the first of them, by name, that answers. Who holds that one takes the
/// others, and everybody else lets go of them.
pub fn may_hold(cluster: &ClusterName, company: &BTreeMap<ClusterName, LeaseStatus>) -> bool {
    let mut places = company.iter();
    match places.find(|(name, place)| *name == cluster || **place != LeaseStatus::Unreachable) {
        None => true,
        Some((first, _)) if first == cluster => true,
        Some((_, place)) => *place == LeaseStatus::Mine,
    }
}

/// Why a host parts with a cluster that it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartingReason {
    /// Another host has asked for it.
    Asked,
    /// This host has asked for it, and gets nowhere with it.
    Unfit,
}

impl PartingReason {
    /// The reason in words, for logs.
    pub fn words(self) -> &'static str {
        match self {
            Self::Asked => "another host, which leads fewer, has asked for it",
            Self::Unfit => "this host has asked for it and does not get it ready",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{
        ACTS, LASTS, LASTS_MAX, LeaseHolder, LeaseObserver, LeaseOwner, LeaseStatus, RETRY,
        asks_for, gives_to, may_hold,
    };
    use crate::model::id::ClusterName;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn hold(holder: &str, renewed: &str) -> LeaseHolder {
        LeaseHolder {
            holder: holder.to_owned(),
            renewed: renewed.to_owned(),
            lasts: LASTS,
        }
    }

    fn alive(_: &str) -> bool {
        false
    }

    #[test]
    fn a_lease_is_over_when_it_was_seen_unchanged_for_as_long_as_it_lasts() {
        let mut own = LeaseObserver::new("b");
        let mut see = |renewed, now| own.see(Some(hold("a", renewed)), seconds(now), alive);
        assert_eq!(
            see("1", 100),
            LeaseOwner::Theirs(seconds(15)),
            "however old it is"
        );
        assert_eq!(see("1", 110), LeaseOwner::Theirs(seconds(5)));
        assert_eq!(see("2", 112), LeaseOwner::Theirs(seconds(15)), "renewed");
        assert_eq!(see("2", 126), LeaseOwner::Theirs(seconds(1)));
        assert_eq!(see("2", 127), LeaseOwner::Free);
    }

    #[test]
    fn whose_lease_it_is_decides_what_is_seen() {
        let mut own = LeaseObserver::new("b");
        assert_eq!(
            own.see(Some(hold("", "")), seconds(0), alive),
            LeaseOwner::Free
        );
        assert_eq!(
            own.see(Some(hold("b", "1")), seconds(0), alive),
            LeaseOwner::Mine
        );
        let died = |who: &str| who == "a";
        assert_eq!(
            own.see(Some(hold("a", "1")), seconds(0), died),
            LeaseOwner::Free
        );
        let theirs = own.see(Some(hold("c", "1")), seconds(0), died);
        assert_eq!(theirs, LeaseOwner::Theirs(LASTS));
        let c = own.see(Some(hold("c", "1")), seconds(14), died);
        assert_eq!(c, LeaseOwner::Theirs(seconds(1)));
        let other = own.see(Some(hold("d", "1")), seconds(14), died);
        assert_eq!(
            other,
            LeaseOwner::Theirs(LASTS),
            "another holder is another hold"
        );
    }

    #[test]
    fn a_lease_that_somebody_removed_is_its_holders_until_it_is_over() {
        let mut own = LeaseObserver::new("b");
        assert_eq!(
            own.see(None, seconds(0), alive),
            LeaseOwner::Free,
            "there never was one"
        );
        own.see(Some(hold("a", "1")), seconds(0), alive);
        assert_eq!(
            own.see(None, seconds(5), alive),
            LeaseOwner::Theirs(seconds(10))
        );
        assert_eq!(own.see(None, seconds(15), alive), LeaseOwner::Free);
        own.see(Some(hold("a", "2")), seconds(20), alive);
        let let_go = own.see(Some(hold("", "2")), seconds(21), alive);
        assert_eq!(let_go, LeaseOwner::Free, "the holder released it");
        assert_eq!(own.see(None, seconds(22), alive), LeaseOwner::Free);
    }

    #[test]
    fn nobody_is_kept_out_for_long_by_one_mistake() {
        let mut own = LeaseObserver::new("b");
        let mut long = hold("a", "1");
        long.lasts = Duration::from_secs(1 << 40);
        let sight = own.see(Some(long), seconds(0), alive);
        assert_eq!(sight, LeaseOwner::Theirs(LASTS_MAX));
    }

    #[test]
    fn who_follows_has_the_lease_within_twenty_seconds() {
        // The last renewal is seen at most one look later; another look is made when it is over.
        assert!(RETRY + LASTS + RETRY < seconds(20));
        assert!(ACTS + RETRY < LASTS);
    }

    #[test]
    fn clusters_that_are_led_together_follow_the_first_that_answers() {
        use LeaseStatus::{Free, Mine, Unknown, Unreachable};
        let theirs = || LeaseStatus::Theirs("x".to_owned());
        let may = |places: [LeaseStatus; 3]| {
            let names = ["a", "b", "c"].map(|name| name.into());
            let company: BTreeMap<_, _> = names.clone().into_iter().zip(places).collect();
            names.map(|name| may_hold(&name, &company))
        };
        for (places, expect) in [
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
            assert_eq!(may(places.clone()), expect, "{places:?}");
        }
    }

    /// Who leads which of the clusters `0`, `1` and so on: `m` this host, `f` nobody, `?` unknown,
    /// `-` none can, and else the host of that letter.
    fn company(places: &str) -> BTreeMap<ClusterName, LeaseStatus> {
        let place = |own: char| match own {
            'm' => LeaseStatus::Mine,
            'f' => LeaseStatus::Free,
            '?' => LeaseStatus::Unknown,
            '-' => LeaseStatus::Unreachable,
            host => LeaseStatus::Theirs(host.to_string()),
        };
        let named = places.chars().enumerate();
        let named = named.map(|(at, own)| (ClusterName(at.to_string()), place(own)));
        named.collect()
    }

    #[test]
    fn a_host_asks_whoever_leads_two_more_than_it_does() {
        for (places, expect) in [
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
            let company = company(places);
            let asked = asks_for(&company).map(|own| own.as_str());
            assert_eq!(asked, expect, "{places}");
        }
    }

    #[test]
    fn who_is_asked_gives_until_it_leads_one_more() {
        for (places, gives) in [
            ("mm", true),
            ("m", false),
            ("mma", false),
            ("mmma", true),
            ("mm?", false),
            ("aamm", false),
            ("bbmm", true),
        ] {
            assert_eq!(gives_to("a", &company(places)), gives, "{places}");
        }
    }
}
