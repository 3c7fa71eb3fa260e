//! A large cluster, and thousands of unschedulable pods of many kinds.

use outrigger::catalog::Catalog;
use outrigger::model::labels::{ARCH, HOSTNAME, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;

use crate::catalogs::GIB;
use crate::workloads::pods::{label, plain, spread, term};
use crate::workloads::{Running, Workload, standing};

const PODS: usize = 5_000;
/// Number of pod classes with different requests.
const CLASSES: usize = 2_000;
/// Number of pod sets that affinity rules select.
const GROUPS: usize = 300;
/// Number of pools. Their types fit none of the pods.
const POOLS: usize = 5;
/// Number of label sets of running pods, in addition to those of the standing cluster.
const RUNNING: usize = 2_000;

/// 5,000 pods in 2,000 classes and 300 groups, with 5,000 existing nodes, 100,000 running pods, and
/// the types of EC2. Of ten classes, four request too much, and two need a label that no pool has.
/// One needs a different architecture, and one a zone that does not exist. Two have affinity or
/// anti-affinity that cannot be met.
pub fn hopeless() -> Workload {
    let mut workload = standing::standing();
    workload.catalog = Catalog::shipped();
    workload.usage.clear();
    workload.cluster.pools = (0..POOLS)
        .map(|at| {
            let mut pool = Pool::new(&format!("pool-{at}"));
            pool.requirements.add(ARCH, Requirement::is_in(["amd64"]));
            pool
        })
        .collect();
    let nodes: Vec<_> = workload.running[0].nodes.iter().take(1).cloned().collect();
    workload.running.extend((0..RUNNING).map(|at| {
        let mut template = plain(&format!("r{at:04}"), 0, 0);
        template.labels = label("app", &format!("r{at:04}"));
        let nodes = nodes.clone();
        Running { template, nodes }
    }));
    workload.pods = (0..PODS).map(pod).collect();
    workload
}

fn pod(at: usize) -> Pod {
    let class = at % CLASSES;
    let amount = i64::try_from(class).unwrap_or(0);
    let app = label("app", &format!("h{:03}", class % GROUPS));
    let mut pod = plain(&format!("h{at:04}"), 100 + amount, GIB);
    pod.labels.clone_from(&app);
    match class % 10 {
        0..4 => {
            pod.requests.cpu_milli = 1_000_000 + amount;
            match class % 4 {
                0 => pod.spread = vec![spread(ZONE, &app)],
                1 => pod.anti_affinity = vec![term(HOSTNAME, &app)],
                _ => {}
            }
        }
        4..6 => pod.node_selector = label("team", &format!("t{class}")),
        6 => pod.node_selector = label(ARCH, "arm64"),
        7 => pod.node_selector = label(ZONE, "nowhere"),
        8 => pod.affinity = vec![term(ZONE, &label("app", &format!("nobody-{class}")))],
        _ => {
            pod.requests.cpu_milli = 30_000 + amount;
            pod.affinity = vec![term(HOSTNAME, &label("app", "r0000"))];
        }
    }
    pod
}
