//! How many nodes have to leave, of an order in which they might, to save nearly the most.
//! It must not know what a node is, nor how it is found out what some of them save.
//!
//! Pods go to room that is there first, and what a node costs is saved whole; when that room is
//! full, more nodes save hardly more. So what the first nodes save rises as their price does, and
//! is then about flat: the bend is looked for.

use std::collections::BTreeMap;

/// The fewest nodes are taken that save this share of the most that was found. What sets save that
/// are nearly alike differs by a few per cent.
const ENOUGH: f64 = 0.95;

/// Up to this share more nodes than the fewest are taken for the fewest.
const CLOSE: f64 = 0.25;

/// What is known of how much the first nodes of an order save.
#[derive(Clone, Debug)]
pub struct RemovalSearch {
    /// What so many save; nothing where that is not worth it.
    saved: BTreeMap<usize, f64>,
    /// What so many cost: they save no more.
    price: Vec<f64>,
}

/// Whether something saves nearly as much as the most that can be saved.
pub fn is_enough(saved: f64, most: f64) -> bool {
    saved > 0.0 && saved >= ENOUGH * most
}

impl RemovalSearch {
    /// Nodes with these prices, of which none has been tried.
    pub fn new(prices: impl IntoIterator<Item = f64>) -> Self {
        let mut price = vec![0.0];
        for own in prices {
            price.push(price[price.len() - 1] + own);
        }
        Self {
            saved: BTreeMap::from([(0, 0.0)]),
            price,
        }
    }

    /// The first so many save so much.
    pub fn learn(&mut self, count: usize, saved: f64) {
        self.saved.insert(count, saved);
    }

    /// How many have to leave to save so much if there is room for all their pods.
    pub fn at_least(&self, saved: f64) -> usize {
        let least = self.price.partition_point(|own| *own < saved);
        least.min(self.price.len() - 1)
    }

    fn most(&self) -> f64 {
        self.saved.values().copied().fold(0.0, f64::max)
    }

    /// The fewest that were tried and save nearly the most; none where nothing saves anything.
    pub fn least(&self) -> Option<usize> {
        let most = self.most();
        let mut all = self.saved.iter();
        let least = all.find(|(_, saved)| is_enough(**saved, most));
        least.map(|own| *own.0)
    }

    /// How many to try next: between the fewest that save enough and the most below that do not,
    /// nearer to the few, since these are tried faster; where nothing has saved anything yet, far
    /// fewer. None where the fewest are known well enough.
    pub fn next(&self) -> Option<usize> {
        let Some(high) = self.least() else {
            let fewest = self.saved.keys().find(|count| **count > 0)?;
            return Some(fewest / 4).filter(|count| *count > 0);
        };
        let tried = *self.saved.range(..high).next_back()?.0;
        let low = (tried + 1).max(self.at_least(ENOUGH * self.most()));
        #[expect(clippy::cast_precision_loss, reason = "there are far fewer nodes")]
        let is_close = (high.saturating_sub(low)) as f64 <= CLOSE * high as f64;
        (!is_close).then(|| (low * high).isqrt().min(high - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::RemovalSearch;

    /// Tries what is asked for until nothing is. Says which numbers were tried.
    fn tried(fewest: &mut RemovalSearch, saved: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut tried = Vec::new();
        while let Some(count) = fewest.next() {
            fewest.learn(count, saved(count));
            tried.push(count);
            assert!(tried.len() < 20, "it ends: {tried:?}");
        }
        tried
    }

    #[test]
    fn the_fewest_are_near_the_bend() {
        for bend in [1_u32, 2, 7, 40, 99, 100] {
            let mut fewest = RemovalSearch::new([1.0; 100]);
            let saved = |count: usize| (count as f64).min(f64::from(bend));
            fewest.learn(100, saved(100));
            let tried = tried(&mut fewest, saved);
            let least = fewest.least().expect("something is saved") as f64;
            let most = (f64::from(bend) * 1.34).max(1.0);
            assert!(
                least >= 0.95 * f64::from(bend) && least <= most,
                "{least} for {bend}"
            );
            assert!(tried.len() <= 6, "{tried:?} for {bend}");
        }
    }

    #[test]
    fn nodes_that_cost_less_than_is_to_be_saved_are_not_tried() {
        let mut fewest = RemovalSearch::new([1.0; 100]);
        fewest.learn(100, 60.0);
        assert_eq!(fewest.at_least(60.0), 60);
        let tried = tried(&mut fewest, |count| if count < 80 { 0.0 } else { 60.0 });
        assert!(tried.iter().all(|count| *count >= 57), "{tried:?}");
        assert!((80..=100).contains(&fewest.least().expect("something is saved")));
    }

    #[test]
    fn where_nothing_is_saved_ever_fewer_are_tried() {
        let mut fewest = RemovalSearch::new([1.0; 100]);
        fewest.learn(100, 0.0);
        assert_eq!(tried(&mut fewest, |_| 0.0), [25, 6, 1]);
        assert_eq!(fewest.least(), None);
        let mut fewest = RemovalSearch::new([]);
        fewest.learn(0, 0.0);
        assert_eq!((fewest.next(), fewest.at_least(1.0)), (None, 0));
    }
}
