//! Searches for the smallest number of nodes, in a given order, whose removal reaches nearly the
//! highest savings.
//!
//! Pods first fill free capacity, so each removed node saves its full price. When the free capacity
//! is used up, more removals save little. The savings therefore rise with the removed price and
//! then flatten. The search looks for the point where the savings flatten.

use std::collections::BTreeMap;

/// The search returns the fewest nodes that reach this fraction of the highest savings. The savings
/// of nearly equal sets differ by a few per cent.
const ENOUGH: f64 = 0.95;

/// The search stops when the result exceeds the minimum by at most this fraction of the result.
const CLOSE: f64 = 0.25;

/// Savings known so far, by the number of removed nodes.
#[derive(Clone, Debug)]
pub struct RemovalSearch {
    /// Savings by count; zero if the removal is not justified.
    saved: BTreeMap<usize, f64>,
    /// Total price by count, which is an upper bound of the savings.
    price: Vec<f64>,
}

/// Returns whether `saved` is close enough to `highest`.
pub fn is_enough(saved: f64, highest: f64) -> bool {
    saved > 0.0 && saved >= ENOUGH * highest
}

impl RemovalSearch {
    /// Starts a search over nodes with these prices.
    pub fn new(prices: impl IntoIterator<Item = f64>) -> Self {
        let mut price = vec![0.0];
        for node_price in prices {
            price.push(price[price.len() - 1] + node_price);
        }
        Self { saved: BTreeMap::from([(0, 0.0)]), price }
    }

    /// Records the savings of the first `count` nodes.
    pub fn record_savings(&mut self, count: usize, saved: f64) {
        self.saved.insert(count, saved);
    }

    /// Returns how many nodes must be removed for these savings if there is capacity for all their
    /// pods.
    pub fn min_count_for(&self, saved: f64) -> usize {
        let least = self.price.partition_point(|price| *price < saved);
        least.min(self.price.len() - 1)
    }

    fn highest_savings(&self) -> f64 {
        self.saved.values().copied().fold(0.0, f64::max)
    }

    /// Returns the smallest tried count with nearly the highest savings, or `None` if no removal
    /// saves anything.
    pub fn smallest_sufficient(&self) -> Option<usize> {
        let highest = self.highest_savings();
        let mut all = self.saved.iter();
        let (least, _) = all.find(|(_, saved)| is_enough(**saved, highest))?;
        Some(*least)
    }

    /// Returns the next count to try. It is between the smallest sufficient count and the largest
    /// insufficient one below it, closer to the lower end because small sets are evaluated faster.
    /// If no tried count has saved anything yet, the next count is far smaller. `None` when the
    /// result is precise enough.
    pub fn next_count(&self) -> Option<usize> {
        let Some(high) = self.smallest_sufficient() else {
            let fewest = self.saved.keys().find(|count| **count > 0)?;
            return Some(fewest / 4).filter(|count| *count > 0);
        };
        let tried = *self.saved.range(..high).next_back()?.0;
        let low = (tried + 1).max(self.min_count_for(ENOUGH * self.highest_savings()));
        #[expect(clippy::cast_precision_loss, reason = "there are far fewer nodes")]
        let is_close = (high.saturating_sub(low)) as f64 <= CLOSE * high as f64;
        (!is_close).then(|| (low * high).isqrt().min(high - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::RemovalSearch;

    /// Runs the search to its end and returns the tried numbers.
    fn tried(search: &mut RemovalSearch, saved: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut tried = Vec::new();
        while let Some(count) = search.next_count() {
            search.record_savings(count, saved(count));
            tried.push(count);
            assert!(tried.len() < 20, "it ends: {tried:?}");
        }
        tried
    }

    #[test]
    fn search_finds_the_smallest_sufficient_count() {
        for sufficient in [1_u32, 2, 7, 40, 99, 100] {
            let mut search = RemovalSearch::new([1.0; 100]);
            let saved = |count: usize| (count as f64).min(f64::from(sufficient));
            search.record_savings(100, saved(100));
            let tried = tried(&mut search, saved);
            let least = search.smallest_sufficient().expect("something is saved") as f64;
            let most = (f64::from(sufficient) * 1.34).max(1.0);
            assert!(
                least >= 0.95 * f64::from(sufficient) && least <= most,
                "{least} for {sufficient}"
            );
            assert!(tried.len() <= 6, "{tried:?} for {sufficient}");
        }
    }

    #[test]
    fn counts_that_cost_less_than_the_saving_are_skipped() {
        let mut search = RemovalSearch::new([1.0; 100]);
        search.record_savings(100, 60.0);
        assert_eq!(search.min_count_for(60.0), 60);
        let tried = tried(&mut search, |count| if count < 80 { 0.0 } else { 60.0 });
        assert!(tried.iter().all(|count| *count >= 57), "{tried:?}");
        assert!((80..=100).contains(&search.smallest_sufficient().expect("something is saved")));
    }

    #[test]
    fn fewer_nodes_are_tried_when_nothing_is_saved() {
        let mut search = RemovalSearch::new([1.0; 100]);
        search.record_savings(100, 0.0);
        assert_eq!(tried(&mut search, |_| 0.0), [25, 6, 1]);
        assert_eq!(search.smallest_sufficient(), None);
        let mut search = RemovalSearch::new([]);
        search.record_savings(0, 0.0);
        assert_eq!((search.next_count(), search.min_count_for(1.0)), (None, 0));
    }
}
