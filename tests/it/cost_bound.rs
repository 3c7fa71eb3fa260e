//! Checks the lower bound of workload costs against manual calculations and published values.

use outrigger::model::id::ObjectKey;
use outrigger::model::labels::ARCH;
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger_bench::bound::{Bound, bound, bound_of};
use outrigger_bench::catalogs::MIB;
use outrigger_bench::greedy::greedy;
use outrigger_bench::supply::{Demand, Market, Supply};
use outrigger_bench::workloads::deployments::Deployment;
use outrigger_bench::workloads::{self, Workload, deployments, diverse, pods};
use proptest::{prop_assert, proptest};

use crate::cost::{self, ROUNDING, is_close};

fn bound_of_all(workload: &Workload) -> Bound {
    bound(&workload.snapshot(), &workload.pods).expect("a bound")
}

/// A market of types (price, amounts) and pods (count, amounts), with the resources that are given.
fn market(supplies: &[(f64, &[i64])], demands: &[(usize, &[i64])]) -> Market {
    let supply = |(usd_per_h, net): &(f64, &[i64])| Supply {
        pool: "p".into(),
        instance_type: "t".into(),
        usd_per_h: *usd_per_h,
        net: net.to_vec(),
    };
    let demand = |(count, asks): &(usize, &[i64])| Demand { asks: asks.to_vec(), count: *count };
    let names = ["cpu", "memory", "gpu"].map(str::to_owned);
    Market {
        resources: names[..demands[0].1.len()].to_vec(),
        supplies: supplies.iter().map(supply).collect(),
        demands: demands.iter().map(demand).collect(),
    }
}

#[test]
fn bounds_equal_manual_calculations() {
    type Case<'a> = (&'a [(f64, &'a [i64])], &'a [(usize, &'a [i64])], f64, usize);
    let cases: [Case<'_>; 9] = [
        // Ten pods of a quarter node each.
        (&[(1.0, &[4])], &[(10, &[1])], 2.5, 0),
        // Memory is the limiting resource.
        (&[(1.0, &[4, 4])], &[(10, &[1, 2])], 5.0, 0),
        // A fraction of a pod has the same fraction of every resource, on every type.
        (&[(1.0, &[3, 1]), (1.0, &[1, 3])], &[(1, &[1, 1])], 1.0, 0),
        // The cheaper type is too small, and the other one has capacity for the small pods.
        (&[(1.0, &[2]), (9.0, &[6])], &[(2, &[3])], 9.0, 0),
        (&[(1.0, &[2]), (9.0, &[6])], &[(2, &[3]), (4, &[1])], 11.0, 0),
        // A pod that uses all CPU of a node leaves its memory to other pods.
        (&[(1.0, &[4, 4])], &[(1, &[4, 0]), (1, &[0, 4])], 1.0, 0),
        // Pods without a GPU request need no GPU node.
        (&[(1.0, &[4, 0]), (8.0, &[4, 1])], &[(4, &[1, 0]), (1, &[1, 1])], 8.0 + 0.25, 0),
        // Pods that fit no type cost nothing.
        (&[(1.0, &[4])], &[(3, &[5]), (4, &[1])], 1.0, 3),
        // A free type costs nothing.
        (&[(1.0, &[8]), (0.0, &[4])], &[(4, &[8]), (9, &[4])], 4.0, 0),
    ];
    for (supplies, demands, usd_per_h, unserved) in cases {
        let got = bound_of(&market(supplies, demands)).expect("a bound");
        let right = is_close(got.usd_per_h, usd_per_h, 1e-6) && got.unserved == unserved;
        assert!(right, "{got:?} for {demands:?} on {supplies:?}, not {usd_per_h}");
    }
}

/// The pods of Deployments after a scale-down.
fn scaled_down(all: Vec<Deployment>, replicas: impl Fn(&Deployment) -> usize) -> Vec<Pod> {
    let pods = |deployment: Deployment| {
        (0..replicas(&deployment)).map(|at| deployment.pod(at)).collect::<Vec<_>>()
    };
    all.into_iter().flat_map(pods).collect()
}

#[test]
fn bounds_equal_the_published_values() {
    let two = |replicas| scaled_down(deployments::small_and_large().to_vec(), |_| replicas);
    let fewer = |deployment: &Deployment| if deployment.replicas == 35 { 25 } else { 20 };
    let plain = || diverse::plain(5_000);
    // The sizes of plain pods are random: the bounds of forty draws lie between 127.6 and 133.0.
    let cases = [
        (workloads::ec2_cmr(plain()), 131.3, 3.0),
        (workloads::ec2_amd64_not_t(plain()), 131.3, 3.0),
        (workloads::ec2_cmr(deployments::thirty()), 121.4, 0.05),
        (workloads::kwok(deployments::thirty()), 66.2, 0.06),
        (workloads::kwok(deployments::two()), 71.7, 0.05),
        (workloads::kwok(two(350)), 50.2, 0.05),
        (workloads::kwok(two(300)), 43.0, 0.05),
        (workloads::kwok(scaled_down(deployments::of_all_sizes(), fewer)), 46.2, 0.06),
    ];
    for (workload, usd_per_h, tolerance) in cases {
        let got = bound_of_all(&workload);
        let right = is_close(got.usd_per_h, usd_per_h, tolerance) && got.unserved == 0;
        assert!(right, "{got:?} of {}, not {usd_per_h}", workload.cluster.pools[0].name);
    }
}

#[test]
fn daemon_requests_are_subtracted_only_on_their_nodes() {
    let ask = |cpu| vec![pods::plain("p", cpu, MIB)];
    let mut workload = workloads::kwok(ask(1_900));
    let net = |cpu: f64| 1_900.0 / cpu;
    // $0.025 per core and $0.001 per gigabyte: of all types that are large enough, the largest has
    // the lowest overhead.
    let price = 256.0 * (0.025 + 0.001 * 2.0 * 1.073_741_824);
    let expect = price * net(255_900.0);
    assert!(is_close(bound_of_all(&workload).usd_per_h, expect, 1e-6));
    workload.daemon_sets = vec![DaemonSet {
        key: ObjectKey::new("kube-system", "agent"),
        template: pods::plain("agent", 55_900, MIB),
    }];
    let expect = price * net(200_000.0);
    assert!(is_close(bound_of_all(&workload).usd_per_h, expect, 1e-6));
    let arm64 = pods::label(ARCH, "arm64");
    workload.daemon_sets[0].template.node_selector = arm64;
    let expect = price * net(255_900.0);
    assert!(is_close(bound_of_all(&workload).usd_per_h, expect, 1e-6));
}

#[test]
fn constant_bounds_of_plain_pods_equal_the_computed_bounds() {
    for case in cost::PLAIN_WORKLOADS {
        let got = bound_of_all(&(case.build)()).usd_per_h;
        assert!(is_close(got, case.bound, 0.005), "{}: {got}, not {}", case.name, case.bound);
    }
}

proptest! {
    #[test]
    fn no_plan_costs_less_than_its_bound(workload in cost::a_workload()) {
        let least = bound_of_all(&workload);
        let plan = cost::plan(&workload);
        let greedy = greedy(&workload.snapshot(), &workload.pods);
        let unserved = [plan.unplaced.len(), greedy.unplaced];
        prop_assert!(unserved == [least.unserved; 2], "{unserved:?}, the bound is {least:?}");
        let cost = ROUNDING * cost::cost(&plan);
        prop_assert!(cost >= least.usd_per_h, "plan: {cost}, the bound is {least:?}");
        let cost = ROUNDING * greedy.usd_per_h;
        prop_assert!(cost >= least.usd_per_h, "greedy: {cost}, the bound is {least:?}");
    }
}
