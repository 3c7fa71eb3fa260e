//! Checks label requirements, host ports and startup taints against a simple model: a requirement
//! is evaluated for every possible value of a label, and for its absence.

use std::collections::BTreeSet;

use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, OF_TYPES, OS, POOL, REGION, ZONE,
    is_well_known, label_restriction,
};
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::taint::{Effect, Taint};
use proptest::sample::{select, subsequence};
use proptest::strategy::Strategy;
use proptest::{collection, option, prop_assert, prop_assert_eq, proptest};

use Operator::{DoesNotExist, Exists, Gt, Gte, In, Lt, Lte, NotIn};

/// Every value that distinguishes two requirements of these tests, and some further values.
const VALUES: [&str; 14] =
    ["A", "B", "0", "1", "2", "3", "5", "8", "9", "10", "11", "05", "zz", "true"];

/// A requirement as it is written in a manifest: an operator and its values.
type Expression<'w> = (Operator, &'w [&'w str]);

/// The requirements in the tables of Karpenter's tests.
const ALL: [(&str, Expression<'_>); 14] = [
    ("exists", (Exists, &[])),
    ("absent", (DoesNotExist, &[])),
    ("in A", (In, &["A"])),
    ("in B", (In, &["B"])),
    ("in A,B", (In, &["A", "B"])),
    ("not A", (NotIn, &["A"])),
    ("in 1", (In, &["1"])),
    ("in 9", (In, &["9"])),
    ("in 1,9", (In, &["1", "9"])),
    ("not 1,2", (NotIn, &["1", "2"])),
    (">1", (Gt, &["1"])),
    (">9", (Gt, &["9"])),
    ("<1", (Lt, &["1"])),
    ("<9", (Lt, &["9"])),
];

/// The simple model: whether a label with this value, or an absent label, satisfies a requirement.
fn holds((operator, values): Expression<'_>, label: Option<&str>) -> bool {
    let number = |text: &str| text.parse::<i64>().ok();
    let compare = |than: fn(&i64, &i64) -> bool| {
        let pair = label.and_then(number).zip(number(values[0]));
        pair.is_some_and(|(label, number)| than(&label, &number))
    };
    match operator {
        In => label.is_some_and(|label| values.contains(&label)),
        NotIn => label.is_none_or(|label| !values.contains(&label)),
        Exists => label.is_some(),
        DoesNotExist => label.is_none(),
        Gt => compare(i64::gt),
        Gte => compare(i64::ge),
        Lt => compare(i64::lt),
        Lte => compare(i64::le),
    }
}

fn with_least(mut requirement: Requirement, least: Option<u32>) -> Requirement {
    requirement.min_values = least;
    requirement
}

fn read((operator, values): Expression<'_>) -> Requirement {
    let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    Requirement::from_operator(operator, &values).expect("values that fit the operator")
}

fn bound(operator: Operator, value: &'static str) -> Requirement {
    Requirement::from_operator(operator, &[value.to_owned()]).expect("an integer")
}

fn required(requirement: &Requirement, label: Option<&str>) -> bool {
    label.map_or(requirement.allows_absence(), |label| requirement.allows_value(label))
}

/// Absence first, then every value.
fn everything() -> impl Iterator<Item = Option<&'static str>> {
    std::iter::once(None).chain(VALUES.map(Some))
}

/// The simplest operator for a requirement that exactly these labels satisfy.
fn shortest(satisfied: &BTreeSet<Option<&str>>) -> Operator {
    let open = satisfied.contains(&Some("zz")) || satisfied.contains(&Some("11"));
    let bounded = !satisfied.contains(&Some("zz"));
    // Among integers within the bounds, no requirement excludes the value "05".
    let gaps = VALUES.iter().any(|value| {
        let within = !bounded || value.parse::<i64>().is_ok();
        within && !satisfied.contains(&Some(value))
    });
    match (open, satisfied.contains(&None)) {
        (true, true) => NotIn,
        (true, false) if gaps && !bounded => NotIn,
        (true, false) => Exists,
        (false, true) => DoesNotExist,
        (false, false) if satisfied.is_empty() => DoesNotExist,
        (false, false) => In,
    }
}

/// Compares the intersection with the labels that satisfy both requirements.
fn check_intersection(
    (first, one): (&str, Expression<'_>),
    (second, other): (&str, Expression<'_>),
) {
    let (ours, theirs) = (read(one), read(other));
    let both = ours.intersection(&theirs);
    let satisfied: BTreeSet<Option<&str>> =
        everything().filter(|label| holds(one, *label) && holds(other, *label)).collect();
    for label in everything() {
        let expect = satisfied.contains(&label);
        assert_eq!(required(&both, label), expect, "{first} and {second}, of {label:?}: {both:?}");
    }
    let case = format!("{first} and {second}: {both:?}");
    assert_eq!(both.is_impossible(), satisfied.is_empty(), "{case}");
    let present = satisfied.iter().any(Option::is_some);
    assert_eq!(ours.has_intersection(&theirs), present, "{case}");
    let is_value = matches!(both.any_value(), Some(any) if both.allows_value(&any));
    assert_eq!(is_value, present && !both.allows_absence(), "{case}");
    if both.operator() == In {
        let values: BTreeSet<Option<&str>> =
            both.values().into_iter().flatten().map(|v| Some(v.as_str())).collect();
        assert_eq!(values, satisfied, "{case}");
    }
    // A bounded requirement has no operator of its own: `Exists` and `NotIn` both stand for it.
    let bounded = [one, other].iter().any(|(op, _)| matches!(op, Gt | Lt));
    if !bounded || satisfied.iter().all(Option::is_none) {
        assert_eq!(both.operator(), shortest(&satisfied), "{case}");
    }
    assert_eq!(theirs.intersection(&ours), both, "{case}: the order changes the result");
    assert_eq!(both.intersection(&both), both, "{case}: the intersection with itself differs");
}

#[test]
fn intersection_allows_only_values_that_both_requirements_allow() {
    for one in ALL {
        for other in ALL {
            check_intersection(one, other);
        }
    }
}

#[test]
fn intersection_keeps_the_larger_min_values() {
    let least = |written, min_values| with_least(read(written), min_values);
    let cases = [
        (None, None, None),
        (Some(1), None, Some(1)),
        (None, Some(2), Some(2)),
        (Some(3), Some(2), Some(3)),
    ];
    for (_, one) in ALL {
        for (_, other) in ALL {
            for (ours, theirs, expect) in cases {
                let both = least(one, ours).intersection(&least(other, theirs));
                assert_eq!(both.min_values, expect, "{one:?} and {other:?}");
                let plain = read(one).intersection(&read(other));
                assert_eq!(with_least(both, None), plain, "{one:?} and {other:?}");
            }
        }
    }
}

#[test]
fn requirement_allows_exactly_the_values_of_its_expression() {
    for (name, written) in ALL {
        let requirement = read(written);
        for value in VALUES {
            assert_eq!(
                requirement.allows_value(value),
                holds(written, Some(value)),
                "{name}: {value}"
            );
        }
        assert_eq!(requirement.allows_absence(), holds(written, None), "{name}");
    }
}

/// A requirement as it is written, its operator, the number of its values if it is finite, a value
/// for a new node, and the text.
type Description<'w> = (Expression<'w>, Operator, Option<usize>, Option<&'w str>, &'w str);

#[test]
fn requirement_has_the_expected_operator_values_and_text() {
    let many: &[&str] = &["1", "2", "3", "4", "5", "6", "7"];
    let table: [Description<'_>; 20] = [
        ((Exists, &[]), Exists, None, Some("true"), "exists"),
        ((DoesNotExist, &[]), DoesNotExist, Some(0), None, "does not exist"),
        ((In, &["A"]), In, Some(1), Some("A"), "in [A]"),
        ((In, &["B"]), In, Some(1), Some("B"), "in [B]"),
        ((In, &["B", "A"]), In, Some(2), Some("A"), "in [A, B]"),
        ((In, many), In, Some(7), Some("1"), "in [1, 2, 3, 4, 5 and 2 others]"),
        ((NotIn, &["A"]), NotIn, None, None, "not in [A]"),
        ((NotIn, many), NotIn, None, None, "not in [1, 2, 3, 4, 5 and 2 others]"),
        ((NotIn, &[]), NotIn, None, None, "anything"),
        ((In, &["1"]), In, Some(1), Some("1"), "in [1]"),
        ((In, &["9"]), In, Some(1), Some("9"), "in [9]"),
        ((In, &["1", "9"]), In, Some(2), Some("1"), "in [1, 9]"),
        ((NotIn, &["1", "2"]), NotIn, None, None, "not in [1, 2]"),
        ((Gt, &["1"]), Exists, None, Some("2"), ">= 2"),
        ((Gt, &["9"]), Exists, None, Some("10"), ">= 10"),
        ((Lt, &["1"]), Exists, None, Some("0"), "<= 0"),
        ((Lt, &["9"]), Exists, None, Some("0"), "<= 8"),
        ((Gte, &["1"]), Exists, None, Some("1"), ">= 1"),
        ((Lte, &["9"]), Exists, None, Some("0"), "<= 9"),
        ((Gt, &["-5"]), Exists, None, Some("0"), ">= 0"),
    ];
    for (written, operator, count, any, text) in table {
        let requirement = read(written);
        assert_eq!(requirement.operator(), operator, "{text}");
        assert_eq!(requirement.values().map(BTreeSet::len), count, "{text}");
        assert_eq!(requirement.any_value().as_deref(), any, "{text}");
        assert_eq!(requirement.to_string(), text);
    }
}

#[test]
fn requirements_on_one_label_are_displayed_as_one() {
    let table: [(&[Expression<'_>], Option<&str>, &str); 9] = [
        (&[(Exists, &[]), (NotIn, &["A"])], Some("true"), "exists but not in [A]"),
        (&[(Exists, &[]), (NotIn, &["true"])], Some("0"), "exists but not in [true]"),
        (&[(Gte, &["3"]), (Lte, &["5"])], Some("3"), ">= 3 and <= 5"),
        (
            &[(Gte, &["3"]), (Lte, &["5"]), (NotIn, &["3", "9", "A"])],
            Some("4"),
            "not in [3] and >= 3 and <= 5",
        ),
        // Only these two spellings of the number are excluded.
        (
            &[(Gte, &["3"]), (Lte, &["3"]), (NotIn, &["3", "03"])],
            Some("003"),
            "not in [03, 3] and >= 3 and <= 3",
        ),
        (&[(In, &["A"]), (In, &["B"])], None, "what cannot be"),
        (&[(Exists, &[]), (DoesNotExist, &[])], None, "what cannot be"),
        (&[(Gt, &["5"]), (Lt, &["6"])], None, "what cannot be"),
        (&[(DoesNotExist, &[]), (NotIn, &["A"])], None, "does not exist"),
    ];
    for (all, any, text) in table {
        let written = all.iter().map(|written| read(*written));
        let intersection = written.reduce(|one, other| one.intersection(&other));
        let intersection = intersection.expect("at least one");
        assert_eq!(intersection.any_value().as_deref(), any, "{text}");
        assert_eq!(intersection.to_string(), text);
    }
    let least = with_least(Requirement::is_in(["A"]), Some(2));
    assert_eq!(least.to_string(), "in [A] (min_values 2)");
}

#[test]
fn inclusive_bounds_allow_the_bound_and_exclusive_ones_do_not() {
    let both = |one: &Requirement, other: &Requirement| one.intersection(other);
    let (max, min) = ("9223372036854775807", "-9223372036854775808");
    // Two bounds, and the integers just inside and just outside their intersection.
    let table = [
        (bound(Gte, "5"), bound(Gte, "5"), Some("5"), Some("4")),
        (bound(Lte, "5"), bound(Lte, "5"), Some("5"), Some("6")),
        (bound(Gte, "1"), bound(Lte, "5"), Some("1"), Some("0")),
        (bound(Gte, "1"), bound(Lte, "5"), Some("5"), Some("6")),
        (bound(Gte, "5"), bound(Gt, "4"), Some("5"), Some("4")),
        (bound(Lte, "5"), bound(Lt, "6"), Some("5"), Some("6")),
        (bound(Gte, "5"), bound(Gt, "7"), Some("8"), Some("7")),
        (bound(Gte, "9"), bound(Gt, "7"), Some("9"), Some("8")),
        (bound(Lte, "5"), bound(Lt, "3"), Some("2"), Some("3")),
        (bound(Lte, "1"), bound(Lt, "3"), Some("1"), Some("2")),
        (bound(Gte, "0"), bound(Gte, "0"), Some("0"), Some("x")),
        (bound(Lte, "0"), bound(Lte, "0"), Some("0"), Some("1")),
        (bound(Gte, "6"), bound(Lte, "5"), None, Some("5")),
        // The value of a label cannot begin with a sign.
        (bound(Lt, "0"), bound(Lt, "1"), None, Some("0")),
        (bound(Lte, "-1"), bound(Lte, "5"), None, Some("-1")),
        (bound(Lt, min), bound(Lte, max), None, Some("0")),
        (bound(Gt, max), bound(Gte, "0"), None, Some(max)),
        (bound(Gte, max), bound(Gte, "0"), Some(max), Some("0")),
    ];
    for (one, other, inside, outside) in table {
        let intersection = both(&one, &other);
        assert_eq!(intersection.is_impossible(), inside.is_none(), "{intersection}");
        assert!(inside.is_none_or(|value| intersection.allows_value(value)), "{intersection}");
        assert!(outside.is_none_or(|value| !intersection.allows_value(value)), "{intersection}");
        let any = intersection.any_value();
        assert!(any.is_none_or(|value| intersection.allows_value(&value)), "{intersection}");
    }
    assert_eq!(bound(Gt, "4"), bound(Gte, "5"));
    assert_eq!(bound(Lt, "6"), bound(Lte, "5"));
}

#[test]
fn deprecated_label_names_equal_their_stable_names() {
    let table = [
        ("failure-domain.beta.kubernetes.io/zone", ZONE),
        ("failure-domain.beta.kubernetes.io/region", REGION),
        ("topology.ebs.csi.aws.com/zone", ZONE),
        ("beta.kubernetes.io/arch", ARCH),
        ("beta.kubernetes.io/os", OS),
        ("beta.kubernetes.io/instance-type", INSTANCE_TYPE),
        ("custom", "custom"),
    ];
    for (key, stable) in table {
        let alone = |key| Requirements::from_iter([(key, Requirement::is_in(["x"]))]);
        assert_eq!(alone(key), alone(stable), "{key}");
        let mut both = alone(key);
        both.add(stable, Requirement::is_in(["y"]));
        assert!(both.get(stable).is_some_and(Requirement::is_impossible));
        // Both names mean the same label when two sides are compared.
        assert!(alone(stable).check_compatible(&alone(key), false).is_ok());
        let other = Requirements::from_iter([(stable, Requirement::is_in(["y"]))]);
        assert!(other.check_compatible(&alone(key), false).is_err());
        let labels = Labels::from([(key.to_owned(), "x".to_owned())]);
        assert_eq!(Requirements::from_labels(&labels), alone(stable));
    }
}

/// A node is compatible with a pod if both allow a common value, or the absence, of the label. An
/// undefined label is absent, unless it is a well-known label of a new node.
#[test]
fn requirements_are_compatible_if_some_label_value_satisfies_both() {
    let keys = [("custom", false), (ZONE, false), ("custom", true), (ZONE, true)];
    let node_sides = std::iter::once(None).chain(ALL.map(|(_, written)| Some(written)));
    for node_side in node_sides {
        for (name, wanted) in ALL {
            for (key, new) in keys {
                let decided = key == ZONE && new;
                let may = |label: Option<&str>| match node_side {
                    Some(expression) => holds(expression, label),
                    None => decided || label.is_none(),
                };
                let expect = everything().any(|label| may(label) && holds(wanted, label));
                let side: Requirements =
                    node_side.map(|expression| (key, read(expression))).into_iter().collect();
                let pod = Requirements::from_iter([(key, read(wanted))]);
                let got = side.check_compatible(&pod, new);
                assert_eq!(got.is_ok(), expect, "{node_side:?} for {name}: {got:?}");
                // The intersection compares only labels that both sides define.
                let meets = node_side.is_none() || expect;
                assert_eq!(
                    side.check_intersection(&pod).is_ok(),
                    meets,
                    "{node_side:?} for {name}"
                );
            }
        }
    }
}

#[test]
fn impossible_requirement_is_compatible_with_nothing() {
    let mut pod = Requirements::from_iter([(ZONE, Requirement::is_in(["a"]))]);
    pod.add(ZONE, Requirement::is_in(["b"]));
    let sides = [
        Requirements::default(),
        Requirements::from_iter([(ZONE, Requirement::exists())]),
        Requirements::from_iter([(ZONE, Requirement::not_in(["c"]))]),
    ];
    for side in sides {
        let no = side.check_compatible(&pod, true).expect_err("no zone is both");
        assert_eq!(no.to_string(), "topology.kubernetes.io/zone: wanted what cannot be");
        assert!(side.check_intersection(&pod).is_err());
    }
}

#[test]
fn unknown_label_error_suggests_a_similar_label() {
    let table = [
        // The domain is missing.
        ("zone", Some(ZONE)),
        ("region", Some(REGION)),
        ("nodepool", Some(POOL)),
        ("instance-type", Some(INSTANCE_TYPE)),
        ("arch", Some(ARCH)),
        ("capacity-type", Some(CAPACITY_TYPE)),
        ("instance-cpu", Some("karpenter.k8s.aws/instance-cpu")),
        // Wrong domains and typing errors.
        ("node.io/zone", Some(ZONE)),
        ("topology.kubernetesio/zone", Some(ZONE)),
        ("topology.kubernetes.io/zome", Some(ZONE)),
        ("topology.kubernetes.io/regio", Some(REGION)),
        ("node.kubernetes.io/region", Some(REGION)),
        ("karpenter.sh/node-pool", Some(POOL)),
        ("karpenter/nodepool", Some(POOL)),
        ("karpenter.k8s.aws/instance-cpus", Some("karpenter.k8s.aws/instance-cpu")),
        ("regoin", Some(REGION)),
        // A custom label of the pool.
        ("teams", Some("team")),
        ("example.com/team", Some("team")),
        ("zonal", None),
        ("deployment", None),
        ("foo.bar/baz", None),
        ("x", None),
    ];
    let pool = Requirements::from_iter([("team", Requirement::is_in(["a"]))]);
    for (key, expect) in table {
        let pod = Requirements::from_iter([(key, Requirement::is_in(["a", "b"]))]);
        let no = pool.check_compatible(&pod, true).expect_err("not defined");
        let hint = expect.map_or(String::new(), |label| format!("; did you mean {label}?"));
        let text = format!("{key}: wanted in [a, b], but the label is not defined here{hint}");
        assert_eq!(no.to_string(), text);
    }
}

#[test]
fn incompatibility_message_shows_both_requirements() {
    let side = Requirements::from_iter([
        (ZONE, Requirement::is_in(["a", "b"])),
        ("team", Requirement::is_in(["x"])),
    ]);
    let pod = Requirements::from_iter([
        (ZONE, Requirement::is_in(["c"])),
        ("team", Requirement::exists()),
    ]);
    let no = side.check_compatible(&pod, true).expect_err("no such zone");
    assert_eq!(no.to_string(), "topology.kubernetes.io/zone: wanted in [c], offered in [a, b]");
}

#[test]
fn displayed_requirements_are_sorted() {
    let parts = [
        ("zone", Requirement::is_in(["b", "a"])),
        ("team", Requirement::exists()),
        ("arch", Requirement::not_in(["arm64"])),
    ];
    let text = "arch not in [arm64], team exists, zone in [a, b]";
    let forwards: Requirements = parts.clone().into_iter().collect();
    let backwards: Requirements = parts.into_iter().rev().collect();
    assert_eq!(forwards.to_string(), text);
    assert_eq!(backwards.to_string(), text);
}

#[test]
fn reserved_labels_are_rejected_with_a_reason() {
    let hostname = Some("kubernetes.io/hostname is not known before a node exists");
    let reserved = Some("the karpenter.sh domain is reserved");
    let unknown = Some("there is no such label in its domain");
    let table = [
        (HOSTNAME, hostname),
        ("karpenter.sh/registered", reserved),
        ("karpenter.sh/custom", reserved),
        ("custom.karpenter.sh/x", reserved),
        ("karpenter.k8s.aws/instance-cpus", unknown),
        ("notkarpenter.sh/x", None),
        (POOL, None),
        (CAPACITY_TYPE, None),
        ("karpenter.k8s.aws/instance-cpu", None),
        ("kubernetes.io/custom", None),
        ("node.kubernetes.io/custom", None),
        ("subdomain.kops.k8s.io/custom", None),
        ("team", None),
    ];
    for (key, expect) in table {
        assert_eq!(label_restriction(key), expect, "{key}");
    }
    for key in OF_TYPES {
        assert!(is_well_known(key) && label_restriction(key).is_none(), "{key}");
    }
}

#[test]
fn startup_taints_of_kubernetes_are_ephemeral() {
    let taint = |key: &str, value: &str, effect| Taint {
        value: value.to_owned(),
        ..Taint::new(key, effect)
    };
    let all = [Effect::NoSchedule, Effect::PreferNoSchedule, Effect::NoExecute];
    let not_ready = "node.kubernetes.io/not-ready";
    let cloud = "node.cloudprovider.kubernetes.io/uninitialized";
    // For each effect in the order above.
    let table = [
        (not_ready, "", [true, false, true]),
        ("node.kubernetes.io/unreachable", "", [true, false, false]),
        (cloud, "true", [true, false, false]),
        (cloud, "false", [false, false, false]),
        // With early binding, nodes have this taint with an effect that evicts no pods.
        ("karpenter.sh/unregistered", "", [true, false, true]),
        ("readiness.k8s.io/storage", "", [true, true, true]),
        ("readiness.k8s.io/storage", "pending", [true, true, true]),
        ("example.com/readiness.k8s.io/x", "", [false, false, false]),
        ("example.com/dedicated", "", [false, false, false]),
    ];
    for (key, value, expect) in table {
        let got = all.map(|effect| taint(key, value, effect).is_ephemeral());
        assert_eq!(got, expect, "{key}={value}");
    }
}

/// Up to four requirements as they are written, for one label.
fn a_written_requirement() -> impl Strategy<Value = Vec<(Operator, Vec<&'static str>)>> {
    let named = (select(&[In, NotIn][..]), subsequence(&VALUES[..], 1..5));
    let bound = (
        select(&[Gt, Gte, Lt, Lte][..]),
        select(&["0", "1", "3", "5", "9", "10"][..]).prop_map(|value| vec![value]),
    );
    let bare = select(&[Exists, DoesNotExist][..]).prop_map(|operator| (operator, vec![]));
    let one = proptest::prop_oneof![named, bound, bare];
    collection::vec(one, 1..5)
}

proptest! {
    #[test]
    fn random_intersections_allow_exactly_the_common_values(
        parts in a_written_requirement(),
        least in collection::vec(option::of(1u32..9), 4),
    ) {
        let mut own = Requirement::not_in::<String>([]);
        for ((operator, values), min_values) in parts.iter().zip(&least) {
            own = own.intersection(&with_least(read((*operator, values)), *min_values));
        }
        let naive = |label| parts.iter().all(|(operator, all)| holds((*operator, all), label));
        for label in everything() {
            prop_assert_eq!(required(&own, label), naive(label), "{:?} of {}", label, own);
        }
        if own.is_impossible() {
            prop_assert!(everything().all(|label| !naive(label)));
        }
        if let Some(any) = own.any_value() {
            prop_assert!(own.allows_value(&any) && naive(Some(&any)), "{} gives {}", own, any);
        } else {
            prop_assert!(own.allows_absence() || own.is_impossible(), "{}", own);
        }
        let expect = least.iter().take(parts.len()).copied().max().flatten();
        prop_assert_eq!(own.min_values, expect);
    }
}
