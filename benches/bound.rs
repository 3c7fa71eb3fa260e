//! What a workload costs at least: nodes in fractions, pods cut to pieces.
//! It must not know of zones, spread or affinity, nor what a node costs beyond its price.
//!
//! The linear program: buy `x_t` nodes of each type `t` and put `y_jt` of the pods of each size `j`
//! on them, at the least `Σ price_t x_t`, so that `Σ_t y_jt = count_j` and, for each type and
//! resource `r`, `Σ_j asks_jr y_jt <= net_tr x_t`; `y_jt` is there only where a whole pod fits.
//!
//! What is solved is its dual, which has the same value: prices `w_tr` for a unit of a resource on
//! a type, so that no node is worth more than it costs, and with them the value `v_j` of a pod,
//! which is what it would pay where it pays least: the most of `Σ count_j v_j`. Any prices make a
//! bound, whether they are the best ones or not. So the answer is worked out anew from the prices
//! that the crate returns, over all types, and an error of the crate can only make it lower.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};
use outrigger::model::pod::Pod;
use outrigger::state::snapshot::Snapshot;

use crate::supply::{Demand, Market, Supply};

/// A bound, and of what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// No plan for the served pods costs less, in $/h.
    pub usd_per_h: f64,
    /// Pods that fit no type at all, for which nothing is counted.
    pub unserved: usize,
}

/// The bound of these pods, in an empty cluster of the snapshot's pools.
pub fn bound<'a>(
    snapshot: &Snapshot<'_>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Result<Bound, Error> {
    bound_of(&Market::new(snapshot, pods))
}

/// The bound of a market.
pub fn bound_of(market: &Market) -> Result<Bound, Error> {
    let served = |demand: &&Demand| market.supplies.iter().any(|supply| demand.fits(supply));
    let (demands, unserved): (Vec<&Demand>, Vec<&Demand>) = market.demands.iter().partition(served);
    let program = Program::new(market, demands);
    let prices = program.solve()?;
    Ok(Bound {
        usd_per_h: program.value(&prices),
        unserved: unserved.iter().map(|demand| demand.count).sum(),
    })
}

/// A type, in the units of the program: the most that any type has of a resource is one.
struct Row {
    usd_per_h: f64,
    net: Vec<f64>,
    /// Which of the demands fit.
    fits: Vec<bool>,
}

impl Row {
    /// Whether as much money buys at least as much of everything here, for all pods that fit there.
    /// With nodes in fractions nothing is lost then if the other is never bought.
    fn dominates(&self, other: &Self) -> bool {
        let more = |(own, theirs): (&f64, &f64)| own * other.usd_per_h >= theirs * self.usd_per_h;
        let fits = |(own, theirs): (&bool, &bool)| *own || !*theirs;
        self.net.iter().zip(&other.net).all(more) && self.fits.iter().zip(&other.fits).all(fits)
    }
}

struct Program {
    rows: Vec<Row>,
    /// For each row the one that is bought in its place: itself, or one that dominates it.
    stands_for: Vec<usize>,
    asks: Vec<Vec<f64>>,
    counts: Vec<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^53")]
fn float(amount: i64) -> f64 {
    amount as f64
}

impl Program {
    fn new(market: &Market, demands: Vec<&Demand>) -> Self {
        let most = |at: usize| {
            let all = market.supplies.iter().map(|supply| supply.net[at]);
            float(all.max().unwrap_or(0).max(1))
        };
        let units: Vec<f64> = (0..market.resources.len()).map(most).collect();
        let scaled = |amounts: &[i64]| -> Vec<f64> {
            amounts
                .iter()
                .zip(&units)
                .map(|(amount, unit)| float(*amount) / unit)
                .collect()
        };
        let row = |supply: &Supply| Row {
            usd_per_h: supply.usd_per_h,
            net: scaled(&supply.net),
            fits: demands.iter().map(|demand| demand.fits(supply)).collect(),
        };
        let rows: Vec<Row> = market.supplies.iter().map(row).collect();
        let mut bought: Vec<usize> = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            if !bought.iter().any(|other| rows[*other].dominates(row)) {
                bought.retain(|other| !row.dominates(&rows[*other]));
                bought.push(at);
            }
        }
        let instead = |(at, row): (usize, &Row)| {
            let mut better = bought.iter().filter(|other| rows[**other].dominates(row));
            better.next().copied().unwrap_or(at)
        };
        let count = |demand: &&Demand| float(i64::try_from(demand.count).unwrap_or(i64::MAX));
        Self {
            stands_for: rows.iter().enumerate().map(instead).collect(),
            asks: demands.iter().map(|demand| scaled(&demand.asks)).collect(),
            counts: demands.iter().map(count).collect(),
            rows,
        }
    }

    /// The best price of each resource on each type. A type that is never bought has none.
    fn solve(&self) -> Result<Vec<Vec<f64>>, Error> {
        const POSITIVE: (f64, f64) = (0.0, f64::INFINITY);
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let counts = self.counts.iter();
        let values: Vec<Variable> = counts
            .map(|count| problem.add_var(*count, POSITIVE))
            .collect();
        let mut prices: Vec<Vec<Variable>> = Vec::with_capacity(self.rows.len());
        for (at, row) in self.rows.iter().enumerate() {
            if self.stands_for[at] != at {
                prices.push(Vec::new());
                continue;
            }
            let own: Vec<Variable> = row
                .net
                .iter()
                .map(|_| problem.add_var(0.0, POSITIVE))
                .collect();
            let worth = own.iter().copied().zip(row.net.iter().copied());
            problem.add_constraint(worth, ComparisonOp::Le, row.usd_per_h);
            let fitting = (0..self.asks.len()).filter(|demand| row.fits[*demand]);
            for demand in fitting {
                let pays = own
                    .iter()
                    .zip(&self.asks[demand])
                    .map(|(price, asks)| (*price, -asks));
                let terms = [(values[demand], 1.0)].into_iter().chain(pays);
                problem.add_constraint(terms, ComparisonOp::Le, 0.0);
            }
            prices.push(own);
        }
        let solution = problem
            .solve()?
            .into_solution()
            .expect("an answer, there being no limit");
        let price = |variable: &Variable| solution.var_value(*variable).max(0.0);
        Ok(prices
            .iter()
            .map(|own| own.iter().map(price).collect())
            .collect())
    }

    /// What these prices prove.
    fn value(&self, prices: &[Vec<f64>]) -> f64 {
        let mut values = vec![f64::INFINITY; self.asks.len()];
        for (row, stands_for) in self.rows.iter().zip(&self.stands_for) {
            let own = &prices[*stands_for];
            // No node may be worth more than it costs.
            let worth = product(own, &row.net);
            let share = if worth > row.usd_per_h {
                row.usd_per_h / worth
            } else {
                1.0
            };
            for (demand, asks) in self.asks.iter().enumerate() {
                if row.fits[demand] {
                    values[demand] = values[demand].min(share * product(own, asks));
                }
            }
        }
        product(&values, &self.counts)
    }
}

fn product(one: &[f64], other: &[f64]) -> f64 {
    let terms = one.iter().zip(other).map(|(one, other)| one * other);
    terms.fold(0.0, |sum, term| sum + term)
}
