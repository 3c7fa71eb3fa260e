//! Which launch templates there are, and which of them nobody needs any more.
//! It must not know what a template says.
//!
//! Source: spec/aws.md §5.4 and §10, 58 to 60.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// A template stays for so long after its last use: Karpenter's minute is too short to serve the
/// next batch, and a template costs nothing but its place among 5,000 of a region.
pub const KEPT: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug)]
struct CachedTemplate {
    /// When it was last needed, or first seen.
    used: Timestamp,
    /// How many requests need it now.
    users: u32,
}

/// The templates of one cluster.
#[derive(Clone, Debug, Default)]
pub struct LaunchTemplateCache {
    known: BTreeMap<String, CachedTemplate>,
}

impl LaunchTemplateCache {
    /// EC2 lists these as ours. What an earlier life of the daemon left is kept for its time, too:
    /// it may be needed at once.
    pub fn listed(&mut self, names: impl IntoIterator<Item = String>, now: Timestamp) {
        for name in names {
            self.known.entry(name).or_insert(CachedTemplate {
                used: now,
                users: 0,
            });
        }
    }

    /// A request needs a template. Says whether it has to be made first.
    pub fn begin(&mut self, name: &str, now: Timestamp) -> bool {
        let lacks = !self.known.contains_key(name);
        let own = self.known.entry(name.to_owned()).or_insert(CachedTemplate {
            used: now,
            users: 0,
        });
        own.used = now;
        own.users += 1;
        lacks
    }

    /// A request has its answer.
    pub fn end(&mut self, name: &str, now: Timestamp) {
        if let Some(own) = self.known.get_mut(name) {
            own.used = now;
            own.users = own.users.saturating_sub(1);
        }
    }

    /// A template is not there: it could not be made, was taken away, or someone else did so. It is
    /// forgotten and not removed, since whoever needs it makes it anew under the same name.
    pub fn gone(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// What nobody has needed for its time, the longest first: to be removed. Call
    /// [`gone`](Self::gone) before each is, so that a request that comes meanwhile makes it anew.
    pub fn idle(&self, now: Timestamp) -> Vec<String> {
        let over = |own: &CachedTemplate| own.users == 0 && now.duration_since(own.used) >= KEPT;
        let idle = self.known.iter().filter(|(_, own)| over(own));
        let mut idle: Vec<(Timestamp, &String)> =
            idle.map(|(name, own)| (own.used, name)).collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::LaunchTemplateCache;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn a_template_is_made_once_and_removed_when_nobody_needs_it() {
        let mut shelf = LaunchTemplateCache::default();
        assert!(shelf.begin("t", at(0)));
        assert!(!shelf.begin("t", at(1)), "it is there");
        shelf.end("t", at(2));
        assert!(shelf.idle(at(60)).is_empty(), "one request has no answer");
        shelf.end("t", at(5));
        assert!(shelf.idle(at(14)).is_empty());
        assert_eq!(shelf.idle(at(15)), ["t"]);
        assert!(!shelf.begin("t", at(16)), "it is used before it is removed");
        shelf.end("t", at(16));
        assert!(shelf.idle(at(25)).is_empty());
    }

    #[test]
    fn what_is_gone_is_made_anew_and_not_removed() {
        let mut shelf = LaunchTemplateCache::default();
        shelf.begin("t", at(0));
        shelf.gone("t");
        assert!(shelf.idle(at(60)).is_empty());
        assert!(shelf.begin("t", at(60)));
        // The answer of the first request comes after that.
        shelf.end("t", at(60));
        shelf.end("t", at(60));
        shelf.end("other", at(60));
        assert_eq!(shelf.idle(at(70)), ["t"]);
    }

    #[test]
    fn what_an_earlier_life_left_is_removed_after_a_while() {
        let mut shelf = LaunchTemplateCache::default();
        shelf.begin("used", at(0));
        shelf.listed(["used", "b", "a"].map(str::to_owned), at(1));
        assert!(!shelf.begin("b", at(5)));
        shelf.end("b", at(5));
        assert!(shelf.idle(at(10)).is_empty());
        assert_eq!(shelf.idle(at(11)), ["a"]);
        assert_eq!(shelf.idle(at(15)), ["a", "b"]);
        shelf.listed(["a".to_owned()], at(14));
        assert_eq!(shelf.idle(at(15)), ["a", "b"], "being listed is no use");
    }
}
