//! Examples of every kind of report, for tests of their outputs.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ObjectKey, PodKey};
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::provider::{FailureKind, Interruption, OfferingRefusal, RefusalKind};
use crate::scheduling::rejection::RejectionDetail;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::scheduling::{PoolRejection, RejectionCode, UnschedulablePod};
use crate::state::candidates::{NodeHealth, PendingApproval};
use crate::state::cluster_identity::{HeldEnds, Mismatch};
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::DrainBlocker;
use crate::state::sweeps::SweepResult;

fn price(usd_per_h: f64) -> Price {
    Price::new(usd_per_h).expect("a price")
}

fn pod(name: &str) -> PodKey {
    ObjectKey::new("default", name)
}

fn offering(zone: &str, capacity_type: CapacityType) -> OfferingKey {
    OfferingKey {
        instance_type: "m7i.large".into(),
        zone: zone.into(),
        capacity_type,
        reservation: None,
    }
}

fn rejections(count: usize) -> Arc<[PoolRejection]> {
    let pools = [None, Some("general".into()), Some("batch".into())];
    let texts = ["no pool", "taint a=\"b\" not tolerated", "limit\nreached"];
    let all = pools.into_iter().zip(texts).take(count);
    all.map(|(pool, text)| PoolRejection {
        pool,
        code: RejectionCode::Taint,
        miss: RejectionDetail::Told(text.to_owned()),
    })
    .collect()
}

/// Returns all examples. Examples about a pod or a node name the pods `default/p0` to
/// `default/p11`, the node `node-0` and the claim `claim-0`.
pub(crate) fn examples() -> Vec<Report> {
    let mut all = cluster_examples();
    all.extend(claim_examples());
    all.extend(disruption_examples());
    all.extend(node_examples());
    all
}

#[rustfmt::skip]
fn cluster_examples() -> Vec<Report> {
    let until = Timestamp::from_second(1_800_000_000).expect("a time");
    let health = NodeHealth { unready: 3, total: 7 };
    vec![
        Report::Ready,
        Report::Frozen("watch of \"pods\" failed".to_owned()),
        Report::Thawed,
        Report::Mismatch(Mismatch::Unidentified),
        Report::Mismatch(Mismatch::NoNodes { instances: 3, total: 4, id: "3f".to_owned() }),
        Report::Matches,
        Report::SameInstance {
            instance: "i-0".into(), nodes: vec!["node-0".into(), "node-1".into()],
        },
        Report::EndsHeld(HeldEnds {
            id: "1a2b".to_owned(), claims: ["claim-0".into(), "claim-1".into()].into(), total: 3,
        }),
        Report::EndsReleased,
        Report::Unregistered {
            pool: "general".into(), zone: "eu-west-1a".into(), failures: 3, until,
        },
        Report::EndedEarly {
            claim: "claim-0".into(), pool: "general".into(), instance: "i-0".into(),
            offering: offering("eu-west-1a", CapacityType::Spot),
            why: "Client.InternalError: on launch".to_owned(),
            pods: vec![pod("p0"), pod("p1")],
        },
        Report::Registers { pool: "general".into(), zone: "eu-west-1a".into(), left: 1 },
        Report::Registers { pool: "general".into(), zone: "eu-west-1b".into(), left: 0 },
        Report::Planned { pending: 9, placed: 4, claims: 2, unplaced: 1, price: price(0.25) },
        Report::Decided(vec![SignedDuration::from_millis(1500), SignedDuration::from_secs(3)]),
        Report::PodBound(SignedDuration::from_millis(4500)),
        Report::PodBound(SignedDuration::from_secs(-2)),
        Report::PodStarted(SignedDuration::from_millis(4500)),
        Report::PodStarted(SignedDuration::from_secs(-2)),
        Report::Unplaced(UnschedulablePod { pod: pod("p0"), reasons: rejections(1) }),
        Report::Unplaced(UnschedulablePod { pod: pod("p1"), reasons: rejections(3) }),
        Report::Unplaced(UnschedulablePod { pod: pod("p11"), reasons: rejections(3) }),
        Report::AllAnswered,
        Report::Short(Shortfall {
            need: StaticDemand::Nodes("general".into()), missing: 2, reasons: rejections(2),
        }),
        Report::Short(Shortfall {
            need: StaticDemand::Room("default/spare".to_owned()), missing: 4,
            reasons: rejections(1),
        }),
        Report::Enough(StaticDemand::Nodes("general".into())),
        Report::Ailing(health),
        Report::Well(health),
        Report::Held(PendingApproval {
            id: "9c".to_owned(), nodes: ["node-0".into(), "node-1".into()].into(), total: 5,
        }),
        Report::Unheld { id: "9c".to_owned(), nodes: 2 },
        Report::Paused { pool: None, until: None, why: "night work".to_owned() },
        Report::Paused {
            pool: Some("general".into()), until: Some(until), why: "one\u{1b}[2J\nline".to_owned(),
        },
        Report::Resumed { pool: None },
        Report::Resumed { pool: Some("general".into()) },
        Report::LeftClosed { nodes: 4 },
        Report::Misread(InvalidInput {
            of: "pod default/p0".to_owned(), why: "no number".to_owned(),
        }),
        Report::Failed {
            command: "launch", kind: FailureKind::Denied, text: "it says \"no\"".to_owned(),
        },
        Report::Stranger { instance: "i-9".into(), why: "no cluster tag".to_owned() },
    ]
}

#[rustfmt::skip]
fn claim_examples() -> Vec<Report> {
    let (spot, reserved) = (CapacityType::Spot, CapacityType::Reserved);
    let planned = |pods: usize| Report::ClaimPlanned {
        claim: "claim-0".into(), pool: "general".into(), offering: offering("eu-west-1a", spot),
        price: price(0.0312), offerings: 12, reason: "provisioned", relaxed: pods > 1,
        pods: (0..pods).map(|number| pod(&format!("p{number}"))).collect(),
    };
    let launched = |price| Report::ClaimLaunched {
        claim: "claim-0".into(), instance: "i-0".into(),
        offering: offering("eu-west-1b", reserved), price,
    };
    let refusal = |zone, kind| OfferingRefusal { offering: offering(zone, spot), kind };
    let refused = |refusals| Report::ClaimRefused { claim: "claim-0".into(), refusals };
    vec![
        planned(1),
        planned(12),
        launched(None),
        launched(Some(price(1.0))),
        refused(vec![]),
        refused(vec![
            refusal("eu-west-1a", RefusalKind::InsufficientCapacity),
            refusal("eu-west-1b", RefusalKind::LimitExceeded),
        ]),
        Report::ClaimNamed { claim: "claim-0".into(), name: "claim-1".into() },
        Report::ClaimRenewed { claim: "claim-0".into(), next: None },
        Report::ClaimRenewed { claim: "claim-0".into(), next: Some("claim-1".into()) },
        Report::ClaimDenied { claim: "claim-0".into(), why: "9 of 9 cpu".to_owned() },
        Report::BoundEarly {
            claim: "claim-0".into(), node: "node-0".into(), pods: 3,
            after: SignedDuration::from_millis(2345),
        },
        Report::NotEarly { claim: "claim-0".into(), why: "not allowed".to_owned() },
    ]
}

#[rustfmt::skip]
fn disruption_examples() -> Vec<Report> {
    let retire = |node: Option<&str>, reason, price, pods| Report::Retire {
        claim: "claim-0".into(), pool: "general".into(), node: node.map(Into::into),
        capacity_type: node.map(|_| CapacityType::Spot), reason, price, pods,
    };
    let consolidates = |pools: &[&str], nodes, claims| Report::Consolidates {
        pools: pools.iter().map(|pool| (*pool).into()).collect(), nodes, claims,
        before: price(0.5), after: price(0.125),
    };
    let interrupted = |what, node: Option<&str>, ignored| Report::Interrupted {
        claim: "claim-0".into(), node: node.map(Into::into), instance: "i-0".into(), what, ignored,
    };
    vec![
        retire(Some("node-0"), Reason::Empty, Some(price(0.25)), 0),
        retire(Some("node-0"), Reason::Drifted, None, 3),
        retire(None, Reason::TimedOut, None, 1),
        Report::Eligible { reason: Reason::Empty, nodes: 3 },
        consolidates(&["general"], 1, 0),
        consolidates(&["general"], 3, 1),
        consolidates(&["batch", "general"], 2, 2),
        Report::Drifted { node: "node-0".into(), why: "NodePoolDrifted" },
        interrupted(Interruption::Rebalance, Some("node-0"), true),
        interrupted(Interruption::Maintenance, Some("node-0"), false),
        interrupted(Interruption::Reservation, Some("node-0"), false),
        interrupted(Interruption::Spot, None, false),
        interrupted(Interruption::Stopping, Some("node-0"), false),
        interrupted(Interruption::Failed, Some("node-0"), false),
        Report::Kept {
            claim: "claim-0".into(), reason: Reason::Underutilized, why: "a pod came".to_owned(),
        },
        Report::Kept { claim: "claim-9".into(), reason: Reason::Empty, why: "gone".to_owned() },
        Report::Shut {
            pool: "general".into(), reason: Reason::Drifted, why: "budget is 0".to_owned(),
        },
        Report::SweepSkipped { sweep: SweepKind::Drift, at: Timestamp::UNIX_EPOCH },
        Report::Swept {
            sweep: SweepKind::Drift, at: Timestamp::UNIX_EPOCH,
            result: SweepResult { disrupted: 2, blocked: 1, observed: 1 },
        },
    ]
}

#[rustfmt::skip]
fn node_examples() -> Vec<Report> {
    let (minutes, claim) = (SignedDuration::from_mins, || "claim-0".into());
    let blockers = || vec![DrainBlocker::Protected(pod("p0")), DrainBlocker::Pod(pod("p1"))];
    let held = |more, deadline| Report::DrainHeld {
        claim: claim(), node: "node-0".into(), since: minutes(95), held_by: blockers(), more,
        deadline,
    };
    let phase = |phase, node: Option<&str>, found| Report::ClaimPhase {
        claim: claim(), pool: "general".into(), node: node.map(Into::into),
        offering: node.map(|_| offering("eu-west-1a", CapacityType::Spot)), phase,
        drained: phase == ClaimPhase::Terminating, found,
    };
    vec![
        phase(ClaimPhase::Planned, None, false),
        phase(ClaimPhase::Launching, None, false),
        phase(ClaimPhase::Launched, None, true),
        phase(ClaimPhase::Registered, Some("node-0"), false),
        phase(ClaimPhase::Registered, Some("node-0"), true),
        phase(ClaimPhase::Initialized, Some("node-0"), false),
        phase(ClaimPhase::Draining, Some("node-0"), false),
        phase(ClaimPhase::Terminating, Some("node-0"), false),
        phase(ClaimPhase::Gone, Some("node-0"), false),
        phase(ClaimPhase::Gone, None, false),
        Report::Adopted { node: "node-0".into(), pool: "general".into() },
        Report::NotAdopted { pool: "general".into(), nodes: 2 },
        held(0, None),
        held(2, Some(Timestamp::from_second(1_800_000_000).expect("a time"))),
        Report::DrainForced {
            claim: claim(), node: "node-0".into(), held_by: blockers(), more: 1,
        },
        Report::Lingers { claim: claim(), instance: "i-0".into(), since: minutes(20) },
        Report::Evicted { pod: pod("p0"), reason: Reason::Drifted },
        Report::Ended {
            node: "node-0".into(), pool: "general".into(), took: minutes(2),
            ending: Some(minutes(2)), age: minutes(300),
        },
        Report::Lacking {
            node: "node-0".into(), instance_type: "m7i.large".into(), resource: "memory",
            promised: 8_000_000_000, found: -1,
        },
        Report::Unguarded { node: "node-0".into() },
        Report::EvictRefused { pod: pod("p0"), text: "needs 2 healthy pods".to_owned() },
        Report::EvictRefused { pod: pod("p9"), text: "a\nb".to_owned() },
        Report::Orphan { node: "node-0".into() },
    ]
}
