//! Reserved capacity is used first, counted exactly, and never used twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::model::claim::ClaimPhase;
use outrigger::model::id::ReservationId;
use outrigger::model::instance::{CapacityType, InstanceState, OfferingKey};
use outrigger::model::pod::Pod;
use outrigger::model::reservation::{Reservation, ReservationKind};
use outrigger::plan;
use outrigger::plan::audit::audit;
use outrigger::scheduling::{NewNodeClaim, RejectionCode};

use super::fixture::{Check, Plan, World, ensure};
use super::notation::{With, pod, pods, read, term};
use super::run::{Case, run_cases};

/// A world with reservations (type, ID, number of instances) in the first zone.
fn world(reservations: &[(&str, &str, u32)]) -> World {
    let mut world = World::new();
    let all = reservations.iter();
    add_reservations(&mut world, all.map(|(of, id, total)| (*of, Reservation::new(id, *total))));
    world
}

fn add_reservations<'r>(world: &mut World, all: impl Iterator<Item = (&'r str, Reservation)>) {
    let all = all.map(|(of, reservation)| (of.into(), "z1".into(), reservation));
    let catalog = world.state.catalog.with_reservations(all);
    world.state.catalog = Arc::new(catalog);
}

/// A pod that uses most of a node with four cores.
fn large(name: &str) -> Pod {
    pod(name).cpu(3000).select("arch", "amd64")
}

/// A large pod that requires reserved capacity.
fn reserved(name: &str) -> Pod {
    large(name).select("bought", "reserved")
}

/// The number of free instances of a reservation.
fn free_instances(world: &World, id: &str) -> u32 {
    let snapshot = world.state.snapshot(world.now);
    snapshot.reservations[id].left
}

fn check_free_instances(world: &World, expect: &[(&str, u32)]) -> Check {
    for (id, count) in expect {
        let free = free_instances(world, id);
        ensure(free == *count, || format!("{id} has {free} free instances, not {count}"))?;
    }
    Ok(())
}

/// The number of new nodes per reservation ID, or per capacity type if there is no reservation.
fn nodes_by_reservation(plan: &Plan) -> BTreeMap<String, usize> {
    let way = |claim: &NewNodeClaim| match claim.reservation() {
        Some(id) => id.to_string(),
        None => claim.offerings[0].0.capacity_type.as_str().to_owned(),
    };
    let mut all = BTreeMap::new();
    for claim in &plan.solution.claims {
        *all.entry(way(claim)).or_insert(0) += 1;
    }
    all
}

fn check_nodes_by_reservation(plan: &Plan, expect: &[(&str, usize)]) -> Check {
    let counts = nodes_by_reservation(plan);
    let wanted = expect.iter().map(|(way, count)| ((*way).to_owned(), *count));
    let wanted: BTreeMap<String, usize> = wanted.collect();
    ensure(counts == wanted, || format!("{counts:?}, not {wanted:?}"))
}

/// Removes a pod and its node, as after a drain.
fn terminate(world: &mut World, pod: &str) {
    let claim = world.node_with(pod).expect("a node").name.to_string();
    world.remove(pod);
    remove_node(world, &claim);
}

/// Removes a claim and its node, which have the same name.
fn remove_node(world: &mut World, claim: &str) {
    let kind = outrigger::model::watched_object::ObjectKind::Node;
    let key = outrigger::model::id::ObjectKey::new("", claim);
    world.state.objects.delete(kind, &key, world.now);
    world.state.ledger.remove(&claim.into());
}

/// Audits a plan with this number of changed copies of one claim. Returns the number of remaining
/// launches and the findings.
fn audited(
    world: &World,
    change: impl Fn(&mut NewNodeClaim),
    copies: usize,
) -> (usize, Vec<String>) {
    let snapshot = world.state.snapshot(world.now);
    let mut made = plan::provision(&snapshot, world.now);
    let claim = made.launches.first().expect("a claim").clone();
    let copy = |at| {
        let mut claim = claim.clone();
        claim.pods = vec![pod(&format!("copy-{at}")).key];
        change(&mut claim);
        claim
    };
    made.launches = (0..copies).map(copy).collect();
    let made = audit(made, &snapshot);
    (made.launches.len(), made.findings)
}

const COUNTED: &[Case] = &[
    ("reservations:109", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        let plan = world.add([reserved("p")]).plan();
        check_nodes_by_reservation(&plan, &[("cr-1", 1)])?;
        plan.has("p", "reservation", "cr-1")?;
        plan.has("p", "reserved-as", "default")
    }),
    ("reservations:114", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        let small = pods(3, &pod("p").cpu(1000).select("bought", "reserved"));
        let plan = world.add(small).plan();
        plan.together(&["p00", "p01", "p02"])?;
        check_nodes_by_reservation(&plan, &[("cr-1", 1)])
    }),
    ("reservations:124", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        let plan = world.add([reserved("a"), reserved("b")]).plan();
        plan.places(1)?;
        let words = "reservation cr-1 has 0 of 1 instances left";
        plan.refused("b", RejectionCode::Reservation, words)
    }),
    ("reservations:134", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        world.add([pod("a").cpu(1000)]).settle();
        check_free_instances(&world, &[("cr-1", 0)])?;
        let node = world.node_with("a").expect("a node").name.to_string();
        let plan = world.add([pod("b").cpu(1000).select("reservation", "cr-1")]).plan();
        plan.on("b", &node)
    }),
    // There is no such error: the pod is rejected, because no offering has the reservation.
    ("reservations:144", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        let plan = world.add([large("p").select("reservation", "cr-2")]).plan();
        plan.refused("p", RejectionCode::Offering, "capacity-reservation-id in [cr-2]")
    }),
    ("reservations:162", || {
        let mut world = world(&[("default", "cr-1", 3)]);
        world.add([large("p")]).settle();
        check_free_instances(&world, &[("cr-1", 2)])
    }),
    ("reservations:168", || {
        for phase in [
            ClaimPhase::Planned,
            ClaimPhase::Launched,
            ClaimPhase::Registered,
            ClaimPhase::Initialized,
        ] {
            let mut world = world(&[("default", "cr-1", 3)]);
            world.add([large("p")]).settle_as(phase);
            check_free_instances(&world, &[("cr-1", 2)])?;
            let plan = world.plan();
            check_nodes_by_reservation(&plan, &[]).map_err(|why| format!("{phase:?}: {why}"))?;
        }
        Ok(())
    }),
    ("reservations:178", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        for (pod, count) in [("a", 1), ("b", 0), ("c", 0)] {
            world.add([large(pod)]).settle();
            check_free_instances(&world, &[("cr-1", count)])?;
        }
        world.node_with("c").map_or(Err("c runs".to_owned()), |node| {
            let way = &node.labels["karpenter.sh/capacity-type"];
            ensure(way != "reserved", || format!("c runs on {way}"))
        })
    }),
    ("reservations:191", || {
        let mut world = world(&[("default", "cr-1", 1), ("arm", "cr-2", 1)]);
        let arm = pod("b").cpu(12_000).select("arch", "arm64");
        world.add([large("a"), arm]).settle();
        check_free_instances(&world, &[("cr-1", 0), ("cr-2", 0)])
    }),
    ("reservations:199", || {
        let mut world = world(&[("default", "cr-1", 1), ("default", "cr-2", 1)]);
        world.add([large("a")]).settle();
        let plan = world.add([large("b"), large("c")]).settle();
        check_free_instances(&world, &[("cr-1", 0), ("cr-2", 0)])?;
        plan.makes(2)
    }),
    ("reservations:216", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        world.add([large("p")]);
        let (left, findings) = audited(&world, |_| {}, 3);
        let finding = "dropped a claim of pool default: reservation cr-1 has 2 left";
        ensure(left == 2 && findings == [finding], || format!("{left}: {findings:?}"))
    }),
    ("reservations:228", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        world.add([large("p")]);
        let unknown = |claim: &mut NewNodeClaim| {
            claim.offerings[0].0.reservation = Some(Box::new("cr-2".into()));
        };
        let mixed = |claim: &mut NewNodeClaim| {
            let (key, price) = claim.offerings[0].clone();
            let other =
                OfferingKey { capacity_type: CapacityType::OnDemand, reservation: None, ..key };
            claim.offerings.push((other, price));
        };
        let (left, findings) = audited(&world, unknown, 1);
        ensure(left == 0 && findings[0].contains("does not exist"), || format!("{findings:?}"))?;
        let (left, findings) = audited(&world, mixed, 1);
        ensure(left == 0 && findings[0].contains("different reservations"), || {
            format!("{findings:?}")
        })
    }),
];

const RETURNED: &[Case] = &[
    ("reservations:246", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        world.add([large("p")]).settle();
        check_free_instances(&world, &[("cr-1", 1)])?;
        terminate(&mut world, "p");
        check_free_instances(&world, &[("cr-1", 2)])
    }),
    ("reservations:256", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        world.add([large("a")]).settle();
        world.add([large("b").select("bought", "spot")]).settle();
        terminate(&mut world, "b");
        check_free_instances(&world, &[("cr-1", 0)])
    }),
    ("reservations:263", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        world.add([large("a")]).settle();
        remove_node(&mut world, "unknown");
        check_free_instances(&world, &[("cr-1", 0)])
    }),
    ("reservations:273", || {
        let mut world = world(&[("default", "cr-1", 3)]);
        world.add(pods(3, &large("p"))).settle();
        check_free_instances(&world, &[("cr-1", 0)])?;
        for pod in ["p00", "p01", "p02"] {
            terminate(&mut world, pod);
        }
        check_free_instances(&world, &[("cr-1", 3)])
    }),
    ("reservations:285", || {
        let mut world = world(&[("default", "cr-1", 2), ("arm", "cr-2", 1)]);
        let arm = pod("arm").cpu(12_000).select("arch", "arm64");
        world.add(pods(2, &large("p"))).add([arm]).settle();
        check_free_instances(&world, &[("cr-1", 0), ("cr-2", 0)])?;
        terminate(&mut world, "p00");
        check_free_instances(&world, &[("cr-1", 1), ("cr-2", 0)])
    }),
    ("reservations:299", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        world.add([reserved("a")]).settle();
        world.add([reserved("b")]).settle().placed(&[], &["b"])?;
        terminate(&mut world, "a");
        check_nodes_by_reservation(&world.settle(), &[("cr-1", 1)])
    }),
    ("reservations:315", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        for _ in 0..5 {
            world.add([reserved("a")]).settle();
            check_free_instances(&world, &[("cr-1", 0)])?;
            terminate(&mut world, "a");
            check_free_instances(&world, &[("cr-1", 1)])?;
        }
        Ok(())
    }),
    ("reservations:328", || {
        let mut world = world(&[("default", "cr-1", 3), ("arm", "cr-2", 1)]);
        let arm = pod("arm").cpu(12_000).select("arch", "arm64");
        world.add(pods(2, &reserved("p"))).settle();
        check_free_instances(&world, &[("cr-1", 1), ("cr-2", 1)])?;
        terminate(&mut world, "p01");
        world.add([arm, reserved("q"), reserved("r"), reserved("s")]);
        let plan = world.settle();
        check_free_instances(&world, &[("cr-1", 0), ("cr-2", 0)])?;
        plan.places(3)
    }),
    ("reservations:347", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        world.add([large("a")]).settle_as(ClaimPhase::Planned);
        world.add([large("b")]).settle();
        check_free_instances(&world, &[("cr-1", 0)])?;
        // The launch of the planned claim fails.
        remove_node(&mut world, "n0");
        check_free_instances(&world, &[("cr-1", 1)])?;
        world.settle();
        check_free_instances(&world, &[("cr-1", 0)])
    }),
];

const USED_FIRST: &[Case] = &[
    // Karpenter sets aside every reservation that a claim could use, so that other claims wait for
    // the next pass. Outrigger decides which one is used, and no claim waits.
    ("scheduling:4715", || {
        let mut world = world(&[("default", "cr-1", 1), ("small", "cr-2", 1)]);
        let pod = pod("p").cpu(1500).label("app=p");
        let plan = world.add(pods(3, &pod.apart(term("host", "app=p")))).settle();
        plan.all_placed()?;
        let spot = plan.solution.claims.iter();
        let spot = spot.filter(|claim| claim.reservation().is_none()).count();
        ensure(spot == 1, || format!("{:?}", nodes_by_reservation(&plan)))?;
        check_free_instances(&world, &[("cr-1", 0), ("cr-2", 0)])
    }),
    ("scheduling:4767", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        world.add_pool("other", 0);
        let one = pods(2, &reserved("one").select("pool", "default"));
        let other = pods(2, &reserved("other").select("pool", "other"));
        let plan = world.add(one).add(other).settle();
        plan.places(2)?;
        check_nodes_by_reservation(&plan, &[("cr-1", 2)])?;
        check_free_instances(&world, &[("cr-1", 0)])
    }),
    ("scheduling:4824", || {
        let mut world = world(&[("default", "cr-1", 1), ("default", "cr-2", 1)]);
        let (key, first) = read("reservation in cr-1");
        world.pool().requirements.add(key, first);
        let (key, second) = read("reservation in cr-2");
        world.add_pool("other", 0).requirements.add(key, second);
        let one = pods(2, &large("one").select("pool", "default"));
        let other = pods(2, &large("other").select("pool", "other"));
        let plan = world.add(one).add(other).plan();
        plan.places(2)?;
        check_nodes_by_reservation(&plan, &[("cr-1", 1), ("cr-2", 1)])?;
        plan.has("one00", "reservation", "cr-1")?;
        plan.has("other00", "reservation", "cr-2")
    }),
    ("scheduling:4894", || {
        let mut world = world(&[("default", "cr-1", 1), ("default", "cr-2", 2)]);
        let plan = world.add(pods(4, &large("p"))).plan();
        plan.all_placed()?;
        let ways = nodes_by_reservation(&plan);
        ensure(ways["cr-1"] == 1 && ways["cr-2"] == 2, || format!("{ways:?}"))
    }),
    // In Karpenter, the second pod uses the lighter pool in the next pass, here in the same pass.
    ("scheduling:4976", || {
        let mut world = world(&[("default", "cr-1", 1)]);
        let (key, never) = read("bought not reserved");
        world.pool().requirements.add(key, never);
        let (key, only) = read("bought in reserved");
        world.add_pool("heavy", 10).requirements.add(key, only);
        let plan = world.add(pods(2, &large("p"))).plan();
        plan.all_placed()?;
        let mut pools = [plan.label("p00", "pool")?, plan.label("p01", "pool")?];
        pools.sort_unstable();
        ensure(pools == ["default", "heavy"], || format!("{pools:?}"))?;
        check_nodes_by_reservation(&plan, &[("cr-1", 1), ("spot", 1)])
    }),
    ("scheduling:5059", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        let wishful = large("p").prefer(1, &["zone in z1"]);
        let plan = world.add(pods(3, &wishful)).plan();
        plan.all_placed()?;
        for pod in ["p00", "p01", "p02"] {
            plan.has(pod, "zone", "z1")?;
        }
        ensure(nodes_by_reservation(&plan)["cr-1"] == 2, || {
            format!("{:?}", nodes_by_reservation(&plan))
        })
    }),
    ("scheduling:5142", || {
        let mut world = world(&[("default", "cr-1", 2)]);
        let small = pods(6, &pod("p").cpu(1000).select("bought", "reserved"));
        let plan = world.add(small).plan();
        plan.all_placed()?;
        check_nodes_by_reservation(&plan, &[("cr-1", 2)])
    }),
];

#[test]
fn reservations_are_never_used_beyond_their_free_instances() {
    run_cases(COUNTED);
}

#[test]
fn terminated_instance_frees_its_reservation_slot() {
    run_cases(RETURNED);
}

#[test]
fn all_pools_use_reserved_capacity_first() {
    run_cases(USED_FIRST);
}

#[test]
fn offerings_of_a_claim_share_one_reservation_or_have_none() {
    let mut world = world(&[("default", "cr-1", 2), ("default", "cr-2", 1)]);
    let plan = world.add(pods(6, &large("p"))).plan();
    assert_eq!(plan.all_placed(), Ok(()));
    for claim in &plan.solution.claims {
        let mut others = claim.offerings.iter();
        let reservation = claim.reservation();
        let same = others.all(|(key, _)| key.reservation.as_deref() == reservation);
        assert!(same, "{:?}", claim.offerings);
        let free = claim.offerings[0].1.usd_per_h() < 1e-6;
        assert_eq!(free, reservation.is_some(), "{:?}", claim.offerings[0]);
    }
}

/// Of several suitable reservations, that of the cheapest type is used, regardless of its kind.
#[test]
fn reservation_of_the_cheapest_type_is_used_first() {
    const DEFAULT: (ReservationKind, bool) = (ReservationKind::Default, false);
    const TAKEN_BACK: (ReservationKind, bool) = (ReservationKind::Default, true);
    const BLOCK: (ReservationKind, bool) = (ReservationKind::CapacityBlock, false);
    let kinds = [DEFAULT, TAKEN_BACK, BLOCK];
    for (large, small) in kinds.iter().flat_map(|one| kinds.map(|other| (*one, other))) {
        let reservation = |id, (kind, interruptible)| Reservation {
            kind,
            interruptible,
            ..Reservation::new(id, 5)
        };
        let mut world = World::new();
        let all = [("default", reservation("cr-1", large)), ("small", reservation("cr-2", small))];
        add_reservations(&mut world, all.into_iter());
        let plan = world.add([pod("p").cpu(1000)]).plan();
        assert_eq!(
            check_nodes_by_reservation(&plan, &[("cr-2", 1)]),
            Ok(()),
            "{large:?} {small:?}"
        );
        assert_eq!(plan.types("p"), Ok(vec!["small"]));
    }
}

#[test]
fn launched_instance_is_subtracted_from_a_reservation_once() {
    let first = |world: &mut World, hours: i64, state| {
        let counted = world.now;
        let reservation =
            Reservation { left: 4, counted: Some(counted), ..Reservation::new("cr-1", 5) };
        add_reservations(world, [("default", reservation)].into_iter());
        let mut claims = world.state.ledger.claims.values_mut();
        let instance = claims.next().and_then(|claim| claim.instance.as_mut());
        let instance = instance.expect("an instance");
        instance.launched = counted - SignedDuration::from_hours(hours);
        instance.state = state;
    };
    let cases = [
        // The listing may not contain instances that were launched in the same minute.
        (0, InstanceState::Running, 3),
        (0, InstanceState::ShuttingDown, 3),
        (0, InstanceState::Terminated, 4),
        (1, InstanceState::Running, 4),
        (1, InstanceState::Terminated, 4),
    ];
    for (hours, state, expect) in cases {
        let mut world = world(&[("default", "cr-1", 5)]);
        world.add([large("p")]).settle();
        first(&mut world, hours, state);
        assert_eq!(free_instances(&world, "cr-1"), expect, "{hours} h {state:?}");
    }
}

#[test]
fn ending_or_unavailable_reservation_is_not_used() {
    let ending = |kind, minutes| {
        let mut world = World::new();
        let ends = world.now + SignedDuration::from_mins(minutes);
        let reservation = Reservation { kind, ends: Some(ends), ..Reservation::new("cr-1", 1) };
        add_reservations(&mut world, [("default", reservation)].into_iter());
        world.add([reserved("p")]);
        world
    };
    let open = |world: &World| world.plan().claim_of("p").is_ok();
    assert!(open(&ending(ReservationKind::Default, 1)));
    assert!(open(&ending(ReservationKind::CapacityBlock, 41)));
    let closed = ending(ReservationKind::CapacityBlock, 40).plan();
    assert_eq!(closed.refused("p", RejectionCode::Offering, "reserved"), Ok(()));

    let mut held = ending(ReservationKind::Default, 60);
    let key = held.plan().claim_of("p").expect("a claim").offerings[0].0.clone();
    assert_eq!(key.reservation.as_deref(), Some(&ReservationId::from("cr-1")));
    let until = held.now + SignedDuration::from_mins(3);
    held.state.holds.mark_unavailable(key, until, held.now);
    assert_eq!(held.plan().refused("p", RejectionCode::OfferingsUnavailable, "cr-1"), Ok(()));
}

/// Interruptible reservations and capacity blocks are used last at the same price.
#[test]
fn permanent_reservation_is_preferred_at_equal_cost() {
    let reservation = |id: &str, kind, interruptible| Reservation {
        kind,
        interruptible,
        ..Reservation::new(id, 1)
    };
    let all = [
        reservation("cr-1", ReservationKind::Default, true),
        reservation("cr-2", ReservationKind::CapacityBlock, false),
        reservation("cr-3", ReservationKind::Default, false),
    ];
    let mut world = World::new();
    add_reservations(&mut world, all.map(|reservation| ("default", reservation)).into_iter());
    for id in ["cr-3", "cr-2", "cr-1"] {
        world.add([large(id)]);
        assert_eq!(check_nodes_by_reservation(&world.plan(), &[(id, 1)]), Ok(()));
        world.settle();
    }
}
