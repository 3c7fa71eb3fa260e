//! Tracks existing launch templates and finds unused ones.
//!
//! Source: spec/aws.md §5.4 and §10, 58 to 60.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long an unused template is kept. Karpenter keeps it for one minute, which is often shorter
/// than the time until the next batch of launches. An unused template costs nothing except a part
/// of the quota of 5,000 per region.
pub const KEPT: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Copy, Debug)]
struct CachedTemplate {
    /// When the template was last used, or first seen.
    used: Timestamp,
    /// Number of requests that use the template now.
    users: u32,
}

/// The templates of one cluster.
#[derive(Clone, Debug, Default)]
pub struct LaunchTemplateCache {
    known: BTreeMap<String, CachedTemplate>,
}

impl LaunchTemplateCache {
    /// Adds the templates that EC2 lists. Templates that a previous process created are kept for
    /// the same time, because they may be needed soon.
    pub fn apply_listing(&mut self, names: impl IntoIterator<Item = String>, now: Timestamp) {
        for name in names {
            self.known.entry(name).or_insert(CachedTemplate { used: now, users: 0 });
        }
    }

    /// Records that a request needs a template. Returns whether the template must be created first.
    pub fn begin_use(&mut self, name: &str, now: Timestamp) -> bool {
        let is_new = !self.known.contains_key(name);
        let template =
            self.known.entry(name.to_owned()).or_insert(CachedTemplate { used: now, users: 0 });
        template.used = now;
        template.users += 1;
        is_new
    }

    /// Records that a request is complete.
    pub fn end_use(&mut self, name: &str, now: Timestamp) {
        if let Some(template) = self.known.get_mut(name) {
            template.used = now;
            template.users = template.users.saturating_sub(1);
        }
    }

    /// Removes a template that does not exist, because its creation failed or because it was
    /// deleted. The next request creates it again with the same name.
    pub fn remove_missing(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Unused templates to delete, longest unused first. Call [`Self::remove_missing`] before each
    /// deletion, so that a concurrent request creates it again.
    pub fn idle_templates(&self, now: Timestamp) -> Vec<String> {
        let mut idle: Vec<(Timestamp, &String)> = self
            .known
            .iter()
            .filter(|(_, template)| template.users == 0)
            .filter(|(_, template)| now.duration_since(template.used) >= KEPT)
            .map(|(name, template)| (template.used, name))
            .collect();
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
    fn launch_template_is_created_once_and_idle_after_ten_minutes() {
        let mut cache = LaunchTemplateCache::default();
        assert!(cache.begin_use("t", at(0)));
        assert!(!cache.begin_use("t", at(1)), "the template exists");
        cache.end_use("t", at(2));
        assert!(cache.idle_templates(at(60)).is_empty(), "one request is still without a response");
        cache.end_use("t", at(5));
        assert!(cache.idle_templates(at(14)).is_empty());
        assert_eq!(cache.idle_templates(at(15)), ["t"]);
        assert!(!cache.begin_use("t", at(16)), "it is used before it is removed");
        cache.end_use("t", at(16));
        assert!(cache.idle_templates(at(25)).is_empty());
    }

    #[test]
    fn missing_launch_template_is_recreated_not_deleted() {
        let mut cache = LaunchTemplateCache::default();
        cache.begin_use("t", at(0));
        cache.remove_missing("t");
        assert!(cache.idle_templates(at(60)).is_empty());
        assert!(cache.begin_use("t", at(60)));
        // The response of the first request arrives later.
        cache.end_use("t", at(60));
        cache.end_use("t", at(60));
        cache.end_use("other", at(60));
        assert_eq!(cache.idle_templates(at(70)), ["t"]);
    }

    #[test]
    fn listed_launch_templates_of_an_earlier_run_become_idle() {
        let mut cache = LaunchTemplateCache::default();
        cache.begin_use("used", at(0));
        cache.apply_listing(["used", "b", "a"].map(str::to_owned), at(1));
        assert!(!cache.begin_use("b", at(5)));
        cache.end_use("b", at(5));
        assert!(cache.idle_templates(at(10)).is_empty());
        assert_eq!(cache.idle_templates(at(11)), ["a"]);
        assert_eq!(cache.idle_templates(at(15)), ["a", "b"]);
        cache.apply_listing(["a".to_owned()], at(14));
        assert_eq!(cache.idle_templates(at(15)), ["a", "b"], "a listing does not count as a use");
    }
}
