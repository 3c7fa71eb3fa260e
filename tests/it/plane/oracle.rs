//! Compares plans for random clusters with kube-scheduler's filters on a real control plane.

mod api;
mod fixture;
mod extender;
mod random_cluster;
mod compare;
mod reduce;

use std::collections::BTreeMap;

use super::Plane;
use super::fixture::{chosen, client, clock, is_campaign};
use compare::Court;

/// The number of random clusters of a test run and of a campaign.
const WORLDS: u64 = 6;
const WORLDS_OF_CAMPAIGN: u64 = 300;

/// The minimum number of random clusters of a campaign with each constraint.
const WORLDS_EACH: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn kube_scheduler_agrees_with_every_placement_and_rejection() {
    let name = "plane::oracle::kube_scheduler_agrees_with_every_placement_and_rejection";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let Some(plane) = Plane::start_or_skip_with(name, &["--extender", &url]) else {
        return;
    };
    let court = Court::open(client(plane.kubeconfig()).await, listener).await;
    let began = clock();
    let usual = if is_campaign() { WORLDS_OF_CAMPAIGN } else { WORLDS };
    // The variable selects other seeds.
    let worlds = chosen("OUTRIGGER_WORLDS").unwrap_or(0..usual);
    let is_whole = is_campaign() && worlds.end - worlds.start >= WORLDS_OF_CAMPAIGN;
    let mut seen: BTreeMap<&str, usize> =
        random_cluster::constraints().iter().map(|it| (*it, 0)).collect();
    let (mut bound, mut refused, mut several, mut later) = (0, 0, 0, 0);
    let mut faults = Vec::new();
    for seed in worlds.clone() {
        let world = random_cluster::world(seed);
        match court.judge(&world).await {
            Ok(verdict) => {
                bound += verdict.bound;
                refused += verdict.refused;
                several += verdict.several;
                later += verdict.later;
                if verdict.later > 0 {
                    println!("world {seed}: {} pods are planned later", verdict.later);
                }
                for tag in verdict.tags {
                    *seen.entry(tag).or_default() += 1;
                }
            }
            Err(why) => {
                let (world, why) = reduce::reduce(&court, world, why).await;
                println!("world {seed}: {why}\n{world}\n");
                faults.push(seed);
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let count = worlds.end - worlds.start;
    println!(
        "{count} worlds in {seconds:.0} s: {bound} pods bound where promised, {refused} refused as \
         foretold, {several} that want several new nodes at once, {later} that are planned, too, \
         once it is known where the nodes of the others are"
    );
    if is_whole {
        println!("| constraint | worlds |\n|---|---|");
        for (constraint, worlds) in &seen {
            println!("| {constraint} | {worlds} |");
        }
        for (what, why) in random_cluster::OFF {
            println!("not drawn: {what}: {why}");
        }
    }
    assert!(faults.is_empty(), "disagreements in the worlds {faults:?}");
    let rare = seen.iter().filter(|(_, worlds)| **worlds < WORLDS_EACH);
    let rare: Vec<_> = rare.filter(|_| is_whole).collect();
    assert!(rare.is_empty(), "in too few worlds: {rare:?}");
    assert!(bound > 0 && refused > 0, "nothing was compared");
    assert!(!is_whole || later * 50 <= refused, "too many pods have to wait");
}
