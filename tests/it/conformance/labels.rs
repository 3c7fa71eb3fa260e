//! Label requirements of pods and pools: node selectors and node affinity.

use outrigger::model::pod::Pod;
use outrigger::model::requirement::Requirements;
use outrigger::scheduling::RejectionCode;

use super::fixture::{Check, World, ensure};
use super::notation::{With, key_of, pod, pods, read};
use super::run::{Case, run_cases, run_each_case};

/// A row of a table: its keys in the registry, the requirements of the pool or its labels as
/// `key=value`, the pod, and the expected labels of the node. `placed` stands for any node, and
/// `no` for a pod that is not placed.
struct Row {
    keys: &'static [&'static str],
    pool: &'static [&'static str],
    pod: fn() -> Pod,
    expect: &'static str,
}

fn world(pool: &[&str]) -> World {
    let mut world = World::new();
    for text in pool {
        match text.split_once('=').filter(|_| !text.contains(' ')) {
            Some((key, value)) => {
                let labels = &mut world.pool().labels;
                labels.insert(key_of(key).to_owned(), value.to_owned());
            }
            None => {
                let (key, requirement) = read(text);
                world.pool().requirements.add(key, requirement);
            }
        }
    }
    world
}

fn check(row: &Row) -> Check {
    let plan = world(row.pool).add([(row.pod)()]).plan();
    match row.expect {
        "no" => plan.placed(&[], &["p"]),
        "placed" => plan.placed(&["p"], &[]),
        labels => labels.split(' ').try_for_each(|pair| {
            let (key, value) = pair.split_once('=').expect("a label");
            plan.has("p", key, value)
        }),
    }
}

fn judge_rows(rows: &'static [Row]) {
    let cases = |row: &'static Row| row.keys.iter().map(move |key| (*key, move || check(row)));
    run_each_case(rows.iter().flat_map(cases));
}

/// Custom labels and requirements of a pool.
const CUSTOM: &[Row] = &[
    Row { keys: &["scheduling:155"], pool: &["team=x"], pod: || pod("p"), expect: "team=x" },
    Row {
        keys: &["scheduling:163"],
        pool: &["team=x"],
        pod: || pod("p").select("team", "y"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:172"],
        pool: &["team=x"],
        pod: || pod("p").select("rank", "x"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:180"],
        pool: &["team=x"],
        pod: || pod("p").need(&["team in x y"]),
        expect: "team=x",
    },
    Row {
        keys: &["scheduling:192"],
        pool: &["team=x"],
        pod: || pod("p").need(&["team in y"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:509", "scheduling:953"],
        pool: &[],
        pod: || pod("p").need(&["team in x"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:518", "scheduling:962"],
        pool: &[],
        pod: || pod("p").need(&["team not x"]),
        expect: "team=",
    },
    Row {
        keys: &["scheduling:528", "scheduling:972"],
        pool: &[],
        pod: || pod("p").need(&["team exists"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:537", "scheduling:981"],
        pool: &[],
        pod: || pod("p").need(&["team absent"]),
        expect: "team=",
    },
    Row {
        keys: &["scheduling:547", "scheduling:991"],
        pool: &["team in x"],
        pod: || pod("p"),
        expect: "team=x",
    },
    Row {
        keys: &["scheduling:556", "scheduling:1000"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team in x"]),
        expect: "team=x",
    },
    Row {
        keys: &["scheduling:568", "scheduling:1012"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team not x"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:579", "scheduling:1023"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team exists"]),
        expect: "team=x",
    },
    Row {
        keys: &["scheduling:591", "scheduling:1035"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team absent"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:603", "scheduling:1047"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team in y"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:614", "scheduling:1058"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team not y"]),
        expect: "team=x",
    },
    Row {
        keys: &["scheduling:666", "scheduling:1111"],
        pool: &["team in x"],
        pod: || pod("p").need(&["team exists"]).select("team", "x"),
        expect: "team=x",
    },
];

#[test]
fn nodes_have_the_custom_labels_of_their_pool() {
    judge_rows(CUSTOM);
}

/// Well-known labels, which the provider sets.
const WELL_KNOWN: &[Row] = &[
    Row {
        keys: &["scheduling:205", "scheduling:679"],
        pool: &["zone in z2"],
        pod: || pod("p"),
        expect: "zone=z2",
    },
    Row {
        keys: &["scheduling:214", "scheduling:688"],
        pool: &["zone in z1 z2"],
        pod: || pod("p").select("zone", "z2"),
        expect: "zone=z2",
    },
    Row {
        keys: &["scheduling:225", "scheduling:699"],
        pool: &[],
        pod: || pod("p").select("host", "red-node"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:233", "scheduling:707"],
        pool: &["zone in z1"],
        pod: || pod("p").select("zone", "unknown"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:243", "scheduling:717"],
        pool: &["zone in z1"],
        pod: || pod("p").select("zone", "z2"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:253", "scheduling:727"],
        pool: &[],
        pod: || pod("p").need(&["zone in z3"]),
        expect: "zone=z3 bought=on-demand",
    },
    Row {
        keys: &["scheduling:264", "scheduling:738"],
        pool: &["integer > 8"],
        pod: || pod("p"),
        expect: "type=arm integer=16",
    },
    Row {
        keys: &["scheduling:273", "scheduling:747"],
        pool: &["integer < 4"],
        pod: || pod("p"),
        expect: "type=small integer=2",
    },
    Row {
        keys: &["scheduling:282"],
        pool: &["integer >= 16"],
        pod: || pod("p"),
        expect: "type=arm integer=16",
    },
    Row {
        keys: &["scheduling:291"],
        pool: &["integer <= 2"],
        pod: || pod("p"),
        expect: "type=small integer=2",
    },
    Row {
        keys: &["scheduling:300", "scheduling:756"],
        pool: &[],
        pod: || pod("p").need(&["zone in unknown"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:310", "scheduling:766"],
        pool: &[],
        pod: || pod("p").need(&["zone not z1 z2 unknown"]),
        expect: "zone=z3",
    },
    Row {
        keys: &["scheduling:321", "scheduling:777"],
        pool: &[],
        pod: || pod("p").need(&["zone not z1 z2 z3 unknown"]),
        expect: "no",
    },
    Row {
        keys: &["scheduling:346", "scheduling:802"],
        pool: &[],
        pod: || pod("p").need(&["zone in z1 z2 z3 unknown"]).prefer(1, &["zone in unknown"]),
        expect: "placed",
    },
    Row {
        keys: &["scheduling:373", "scheduling:829"],
        pool: &[],
        pod: || pod("p").need(&["zone in z1 z2 z3 unknown"]).prefer(1, &["zone not z1 z2 z3"]),
        expect: "placed",
    },
    Row {
        keys: &["scheduling:386", "scheduling:842"],
        pool: &[],
        pod: || {
            let pod = pod("p").select("zone", "z3").need(&["zone in z1 z2 z3"]);
            pod.prefer(1, &["zone in z1 z2 z3"])
        },
        expect: "zone=z3",
    },
    Row {
        keys: &["scheduling:401", "scheduling:857"],
        pool: &[],
        pod: || {
            let pod = pod("p").select("zone", "z3").select("type", "arm");
            let pod = pod.need(&["zone in z1 z3", "type in default arm"]);
            pod.prefer(1, &["zone in unknown"]).prefer(1, &["type not unknown"])
        },
        expect: "zone=z3 type=arm",
    },
];

#[test]
fn well_known_labels_restrict_the_launched_offerings() {
    judge_rows(WELL_KNOWN);
}

/// Preferences that are compatible with the requirements are satisfied.
const PREFERRED: &[Case] = &[
    ("scheduling:332", prefers_zone),
    ("scheduling:788", prefers_zone),
    ("scheduling:359", excludes_zones),
    ("scheduling:815", excludes_zones),
];

fn prefers_zone() -> Check {
    let pod = pod("p").need(&["zone in z1 z2 z3 unknown"]);
    let plan = World::new().add([pod.prefer(1, &["zone in z2 unknown"])]).plan();
    plan.has("p", "zone", "z2")
}

fn excludes_zones() -> Check {
    let pod = pod("p").need(&["zone in z1 z2 z3 unknown"]);
    let plan = World::new().add([pod.prefer(1, &["zone not z1 z3"])]).plan();
    plan.has("p", "zone", "z2")
}

#[test]
fn node_preferences_narrow_required_affinity() {
    run_cases(PREFERRED);
}

const RESTRICTED: &[Case] = &[
    ("scheduling:426", || check_restricted("kubernetes.io/hostname")),
    ("scheduling:882", || check_restricted("karpenter.sh/initialized")),
    ("scheduling:442", || check_restricted("karpenter.sh/test")),
    ("scheduling:893", || check_restricted("sub.karpenter.sh/test")),
    ("scheduling:453", || check_kubernetes_domain("")),
    ("scheduling:904", || check_kubernetes_domain("")),
    ("scheduling:467", || check_kubernetes_domain("subdomain.")),
    ("scheduling:918", || check_kubernetes_domain("subdomain.")),
    ("scheduling:481", check_well_known),
    ("scheduling:932", check_well_known),
];

/// Checks that pods that select a restricted label are rejected.
fn check_restricted(key: &str) -> Check {
    let asking = [
        pod("a").select(key, "x"),
        pod("b").need(&[&format!("{key} exists")]),
        pod("c").need(&["os in linux"]).need(&[&format!("{key} in x")]),
    ];
    let plan = World::new().add(asking).plan();
    ["a", "b"]
        .iter()
        .try_for_each(|name| plan.refused(name, RejectionCode::RestrictedLabel, key))?;
    // Karpenter rejects a pod if one term is restricted. The scheduler uses the other term.
    ensure(plan.why("c").is_none_or(|rejected| !rejected.reasons.is_empty()), || {
        "no reason".to_owned()
    })
}

fn check_kubernetes_domain(prefix: &str) -> Check {
    for domain in ["kops.k8s.io", "node.kubernetes.io", "node-restriction.kubernetes.io"] {
        let key = format!("{prefix}{domain}/test");
        let mut world = World::requiring(&[&format!("{key} in x")]);
        let plan = world.add([pod("p").select(&key, "x")]).plan();
        plan.has("p", &key, "x")?;
    }
    Ok(())
}

fn check_well_known() -> Check {
    let mut world = World::new();
    let asking = [
        pod("a").select("zone", "z1"),
        pod("b").select("type", "default"),
        pod("c").select("arch", "arm64"),
        pod("d").select("os", "linux"),
        pod("e").select("bought", "spot"),
        pod("f").select("pool", "default"),
        pod("g").select("size", "large"),
    ];
    world.add(asking).plan().all_placed()
}

#[test]
fn restricted_labels_are_rejected_and_other_labels_allowed() {
    run_cases(RESTRICTED);
}

const SHARED: &[Case] = &[
    ("scheduling:626", check_compatible),
    ("scheduling:1070", check_compatible),
    ("scheduling:646", check_incompatible),
    ("scheduling:1090", check_incompatible),
    ("scheduling:1259", || check_separate("arch", "amd64", "arm64")),
    ("scheduling:1342", || check_separate("os", "linux", "windows")),
    ("scheduling:1367", || check_separate("type", "small", "default")),
    ("scheduling:1392", || check_separate("zone", "z1", "z2")),
];

fn check_compatible() -> Check {
    let mut world = World::requiring(&["team in x y"]);
    let plan = world.add([pod("a").need(&["team in x"]), pod("b").need(&["team not y"])]).plan();
    plan.together(&["a", "b"])?;
    plan.has("a", "team", "x")
}

fn check_incompatible() -> Check {
    let mut world = World::requiring(&["team in x y"]);
    let plan = world.add([pod("a").need(&["team in x"]), pod("b").need(&["team in y"])]).plan();
    plan.apart(&["a", "b"])?;
    plan.has("a", "team", "x")?;
    plan.has("b", "team", "y")
}

fn check_separate(key: &str, one: &str, other: &str) -> Check {
    let plan = World::new().add([pod("a").select(key, one), pod("b").select(key, other)]).plan();
    plan.apart(&["a", "b"])?;
    plan.has("a", key, one)?;
    plan.has("b", key, other)
}

#[test]
fn pods_share_a_node_only_if_their_labels_are_compatible() {
    run_cases(SHARED);
}

/// Instance types that a pod or a pool excludes.
const TYPES: &[Row] = &[
    Row {
        keys: &["scheduling:1284"],
        pool: &[],
        pod: || pod("p").need(&["type in arm small"]).cpu(3000),
        expect: "type=arm",
    },
    Row {
        keys: &["scheduling:1305"],
        pool: &[],
        pod: || pod("p").need(&["os not linux"]),
        expect: "type=windows",
    },
    Row {
        keys: &["scheduling:1327"],
        pool: &["arch in arm64"],
        pod: || pod("p"),
        expect: "type=arm",
    },
    Row {
        keys: &["scheduling:1465"],
        pool: &[],
        pod: || pod("p").select("size", "large"),
        expect: "type=arm size=large",
    },
    Row {
        keys: &["scheduling:1478"],
        pool: &[],
        pod: || pod("p").select("size", "large").select("type", "small"),
        expect: "no",
    },
    Row {
        keys: &["scheduling:1495"],
        pool: &[],
        pod: || pod("p").select("special", "optional"),
        expect: "type=arm special=optional",
    },
    Row {
        keys: &["scheduling:1507"],
        pool: &[],
        pod: || pod("p").need(&["special absent"]).cpu(3000),
        expect: "special= integer=4",
    },
];

#[test]
fn instance_types_are_excluded_by_their_labels() {
    judge_rows(TYPES);
}

const ALTERNATIVES: &[Case] = &[
    ("provisioning:2389", check_only_term),
    ("scheduling:1128", check_only_term),
    ("provisioning:2410", check_any_term),
    ("scheduling:1144", check_any_term),
];

/// Checks that the only term must match.
fn check_only_term() -> Check {
    let pod = pod("p").need(&["zone in unknown", "type in default"]);
    World::new().add([pod]).plan().placed(&[], &["p"])
}

/// Checks that any term may match: Karpenter uses the first possible one, the scheduler any one.
fn check_any_term() -> Check {
    let pod = pod("p").need(&["zone in unknown"]).need(&["zone in none"]);
    let plan = World::new().add([pod.need(&["zone in z1"]).need(&["zone in z2"])]).plan();
    let zone = plan.label("p", "zone")?;
    ensure(["z1", "z2", "z1|z2"].contains(&zone.as_str()), || zone.clone())
}

#[test]
fn one_of_several_node_affinity_terms_must_match() {
    run_cases(ALTERNATIVES);
}

const NO_TYPES: &[Case] = &[
    ("scheduling:5197", || {
        let mut world = World::requiring(&["type in unknown"]);
        let plan = world.add([pod("p")]).plan();
        plan.refused("p", RejectionCode::Requirements, "no instance type")
    }),
    ("scheduling:5242", || {
        let mut world = World::requiring(&["type in unknown"]);
        let plan = world.add(pods(3, &pod("p"))).plan();
        let check_reason =
            |name: &&str| plan.refused(name, RejectionCode::Requirements, "no instance type");
        ["p00", "p01", "p02"].iter().try_for_each(check_reason)
    }),
    ("scheduling:5273", || {
        let mut world = World::requiring(&["arch in arm64", "type in default"]);
        let plan = world.add([pod("p")]).plan();
        plan.refused("p", RejectionCode::Requirements, "no instance type")
    }),
    // The pool does not restrict the types, so the reason names the zones.
    ("scheduling:5302", || {
        let mut world = World::requiring(&["zone in unknown"]);
        let plan = world.add([pod("p")]).plan();
        plan.refused("p", RejectionCode::Offering, "topology.kubernetes.io/zone in [unknown]")
    }),
];

#[test]
fn pool_without_matching_types_gives_that_reason() {
    run_cases(NO_TYPES);
}

#[test]
fn pod_with_contradictory_requirements_is_unschedulable() {
    // Contradictions on one label: between the selector and the affinity, and within one term.
    let mut world = World::requiring(&["team in x y"]);
    let both = |pod: Pod| pod.select("team", "x").need(&["team in y"]);
    let twice = Requirements::from_iter([read("zone in z1"), read("zone in z2")]);
    let pods = [both(pod("a")), pod("b").with(|pod| pod.node_affinity = vec![twice])];
    let plan = world.add(pods).plan();
    assert_eq!(plan.placed(&[], &["a", "b"]), Ok(()));
}
