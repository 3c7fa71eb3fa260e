//! Lower bound on the cost of a workload, with fractional nodes and divisible pods.
//!
//! The linear program buys `x_t` nodes of each type `t` and places `y_jt` pods of each size `j` on
//! them. It minimizes `Σ price_t x_t` subject to `Σ_t y_jt = count_j` and, for each type and
//! resource `r`, `Σ_j asks_jr y_jt <= net_tr x_t`. `y_jt` exists only if a whole pod fits the type.
//!
//! The code solves the dual, which has the same value. The dual sets a price `w_tr` for a unit of
//! each resource on each type, such that no node is worth more than it costs. The value `v_j` of a
//! pod is its price on the type on which it is cheapest. The dual maximizes `Σ count_j v_j`.
//!
//! Any prices prove a bound, optimal or not. The bound is therefore recomputed from the prices that
//! the crate returns, over all types. An error in the crate can only lower it.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};
use outrigger::model::pod::Pod;
use outrigger::state::snapshot::Snapshot;

use crate::supply::{Demand, Market, Supply};

/// A lower bound and the pods that it excludes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// No plan for the served pods costs less, in $/h.
    pub usd_per_h: f64,
    /// Pods that fit no type. They do not count towards the bound.
    pub unserved: usize,
}

/// Returns the bound for these pods in an empty cluster with the pools of the snapshot.
pub fn bound<'a>(
    snapshot: &Snapshot<'_>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Result<Bound, Error> {
    bound_of(&Market::new(snapshot, pods))
}

/// Returns the bound for a market.
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

/// An instance type in the units of the program: the largest quantity of each resource is one.
struct Row {
    usd_per_h: f64,
    net: Vec<f64>,
    /// Demands that fit, by index.
    fits: Vec<bool>,
}

impl Row {
    /// Returns true if the same money buys at least as much of every resource here, for all pods
    /// that fit the other type. With fractional nodes, the other type is then never needed.
    fn dominates(&self, other: &Self) -> bool {
        let more = |(own, theirs): (&f64, &f64)| own * other.usd_per_h >= theirs * self.usd_per_h;
        let fits = |(own, theirs): (&bool, &bool)| *own || !*theirs;
        self.net.iter().zip(&other.net).all(more) && self.fits.iter().zip(&other.fits).all(fits)
    }
}

struct Program {
    rows: Vec<Row>,
    /// For each row, the row that is bought instead: the row itself or one that dominates it.
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
            amounts.iter().zip(&units).map(|(amount, unit)| float(*amount) / unit).collect()
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

    /// Returns the best price of each resource on each type. A type that is never bought has no
    /// prices.
    fn solve(&self) -> Result<Vec<Vec<f64>>, Error> {
        const POSITIVE: (f64, f64) = (0.0, f64::INFINITY);
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let counts = self.counts.iter();
        let values: Vec<Variable> = counts.map(|count| problem.add_var(*count, POSITIVE)).collect();
        let mut prices: Vec<Vec<Variable>> = Vec::with_capacity(self.rows.len());
        for (at, row) in self.rows.iter().enumerate() {
            if self.stands_for[at] != at {
                prices.push(Vec::new());
                continue;
            }
            let own: Vec<Variable> =
                row.net.iter().map(|_| problem.add_var(0.0, POSITIVE)).collect();
            let worth = own.iter().copied().zip(row.net.iter().copied());
            problem.add_constraint(worth, ComparisonOp::Le, row.usd_per_h);
            let fitting = (0..self.asks.len()).filter(|demand| row.fits[*demand]);
            for demand in fitting {
                let pays = own.iter().zip(&self.asks[demand]).map(|(price, asks)| (*price, -asks));
                let terms = [(values[demand], 1.0)].into_iter().chain(pays);
                problem.add_constraint(terms, ComparisonOp::Le, 0.0);
            }
            prices.push(own);
        }
        let solution = problem.solve()?.into_solution().expect("an answer, there being no limit");
        let price = |variable: &Variable| solution.var_value(*variable).max(0.0);
        Ok(prices.iter().map(|own| own.iter().map(price).collect()).collect())
    }

    /// Returns the bound that these prices prove.
    fn value(&self, prices: &[Vec<f64>]) -> f64 {
        let mut values = vec![f64::INFINITY; self.asks.len()];
        for (row, stands_for) in self.rows.iter().zip(&self.stands_for) {
            let own = &prices[*stands_for];
            // No node may be worth more than it costs.
            let worth = product(own, &row.net);
            let share = if worth > row.usd_per_h { row.usd_per_h / worth } else { 1.0 };
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
