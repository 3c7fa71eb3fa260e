//! When plans are made, and how a plan becomes claims and drains.
//! It must not know how a plan is found.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::claim::{ClaimRecord, Phase};
use crate::model::hash::{node_class_hash, pool_hash};
use crate::model::id::ClaimId;
use crate::model::instance::{OfferingKey, Price};
use crate::plan::{self, Plan};
use crate::solve::{NewClaim, Unplaced};
use crate::state::expect::NOMINATED;
use crate::state::ledger::Claim;
use crate::state::snapshot::Host;

/// Sweeps are at least this far apart, however much happens.
const SWEEP_APART: SignedDuration = SignedDuration::from_secs(1);

/// Length of a claim's id: 13 characters of 5 bits are 65 bits, beyond any chance of two alike.
const CLAIM_ID_LENGTH: usize = 13;

impl Engine {
    /// Retires nodes that are due.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        if let Some(at) = self.next_sweep.filter(|at| *at > now) {
            if !self.state.ledger.claims.is_empty() {
                self.wake_at(at, "a sweep is due");
            }
            return;
        }
        self.next_sweep = now.checked_add(SWEEP_APART).ok();
        if self.state.ledger.claims.is_empty() {
            return;
        }
        let plan = plan::sweep_empty(&self.state.roster(now), now);
        if let Some(due) = plan::next_due(&plan.kept) {
            self.wake_at(due, "a node may be empty for long enough");
        }
        for retire in plan.retire {
            let Some(claim) = retire.candidate.claim else {
                continue;
            };
            if self.manages() {
                self.retire(&claim, retire.reason, now);
            } else if self.observed_leaving.insert(claim.clone()) {
                let (node, reason) = (Some(retire.candidate.node), retire.reason);
                let price = retire.candidate.price;
                self.report(Report::Retire {
                    claim,
                    node,
                    reason,
                    price,
                });
            }
        }
    }

    /// Plans capacity for waiting pods, once their batch is complete.
    pub(super) fn provision(&mut self, now: Timestamp) {
        let waiting = self.state.waiting(now);
        let waiting = waiting.into_iter().map(|pod| pod.key.clone()).collect();
        self.batch.observe(waiting, now);
        if let Some(at) = self.state.next_release(now) {
            self.wake_at(at, "pods are expected on a node no more");
        }
        let Some(due) = self.batch.due(&self.state.cluster.batching) else {
            self.told.clear();
            return;
        };
        if due > now {
            self.wake_at(due, "a batch of pods is complete");
            return;
        }
        if let Some(at) = self.denied_until(now) {
            self.wake_at(at, "the fleet may be asked again");
            return;
        }
        self.batch.planned(now);
        let snapshot = self.state.snapshot(now);
        let pending = snapshot.pending.len();
        let plan = plan::provision(&snapshot, now);
        self.report_round(pending, &plan);
        self.carry_out(plan, now);
        if let Some(next) = self.batch.due(&self.state.cluster.batching) {
            self.wake_at(next, "pods still wait");
        }
    }

    fn report_round(&mut self, pending: usize, plan: &Plan) {
        let mut told = std::collections::BTreeMap::new();
        let mut news = !plan.launches.is_empty();
        for Unplaced { pod, reasons } in &plan.unplaced {
            if self.told.get(pod) != Some(reasons) {
                news = true;
                let unplaced = Unplaced {
                    pod: pod.clone(),
                    reasons: reasons.clone(),
                };
                self.report(Report::Unplaced(unplaced));
            }
            told.insert(pod.clone(), reasons.clone());
        }
        self.told = told;
        for finding in &plan.findings {
            self.report(Report::Failed {
                command: "plan",
                kind: crate::engine::command::FailureKind::Invalid,
                text: finding.clone(),
            });
        }
        if news {
            let price: f64 = plan
                .launches
                .iter()
                .filter_map(cheapest)
                .map(|(_, p)| p.usd_per_h())
                .sum();
            self.report(Report::Planned {
                pending,
                placed: plan.placed.iter().map(|(_, pods)| pods.len()).sum(),
                claims: plan.launches.len(),
                unplaced: plan.unplaced.len(),
                price: Price::new(price).unwrap_or_default(),
            });
        }
    }

    fn carry_out(&mut self, plan: Plan, now: Timestamp) {
        let until = now.checked_add(NOMINATED).unwrap_or(now);
        for (host, pods) in plan.placed {
            match host {
                Host::Node(node) => self.state.nominate(node, until),
                Host::Claim(id) => {
                    if let Some(claim) = self.state.ledger.claims.get_mut(&id) {
                        claim.pods.extend(pods);
                    }
                }
            }
        }
        let command_id = self.fresh_id();
        for launch in plan.launches {
            self.plan_claim(launch, &command_id, now);
        }
        self.wake_at(now, "claims are planned");
    }

    fn plan_claim(&mut self, launch: NewClaim, command_id: &str, now: Timestamp) {
        let Some(pool) = self.state.cluster.pool(launch.pool.as_str()) else {
            return;
        };
        let Some((offering, price)) = cheapest(&launch).cloned() else {
            return;
        };
        let mut classes = self.state.cluster.node_classes.iter();
        let class = classes.find(|own| Some(&own.name) == pool.node_class.as_ref());
        let record = ClaimRecord {
            id: ClaimId::default(),
            installation: self.state.cluster.installation.clone(),
            cluster: self.state.cluster.name.clone(),
            pool: pool.name.clone(),
            node_class: pool.node_class.clone(),
            created: now,
            expire_after: pool.expire_after,
            termination_grace_period: pool.termination_grace_period,
            pool_hash: pool_hash(pool),
            node_class_hash: node_class_hash(class),
            startup_taints: pool.startup_taints.clone(),
            reason: "provisioned".to_owned(),
            command_id: command_id.to_owned(),
        };
        let id = ClaimId::from(self.fresh_id());
        let report = Report::ClaimPlanned {
            claim: id.clone(),
            pool: launch.pool.clone(),
            offering,
            price,
            offerings: launch.offerings.len(),
            pods: launch.pods.clone(),
        };
        if !self.manages() {
            // Nothing comes of it, so the same pods are planned for again and again: say it once.
            let fresh = launch
                .pods
                .iter()
                .any(|pod| self.observed_pods.insert(pod.clone()));
            if fresh {
                self.report(report);
            }
            return;
        }
        self.report(report);
        let mut claim = Claim::new(ClaimRecord { id, ..record }, Phase::Planned, now);
        claim.offerings = launch
            .offerings
            .into_iter()
            .map(|(offering, _)| offering)
            .collect();
        claim.labels = launch.labels;
        claim.pods = launch.pods.into_iter().collect();
        self.state.ledger.insert(claim);
    }

    fn fresh_id(&mut self) -> String {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        (0..CLAIM_ID_LENGTH)
            .map(|_| char::from(ALPHABET[self.rng.usize(0..32)]))
            .collect()
    }
}

fn cheapest(claim: &NewClaim) -> Option<&(OfferingKey, Price)> {
    claim.offerings.first()
}
