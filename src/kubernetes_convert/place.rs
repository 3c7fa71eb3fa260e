//! Scheduling constraints of a pod: node affinity, pod affinity, topology spread, groups.

use std::collections::BTreeSet;

use crate::kubernetes_convert::api_types::{
    GROUP_COUNT, GROUPS, LabelSelector, Meta, PodAffinityTerm, PodSpec, PreferredNode,
    PreferredPods, SpreadConstraint,
};
use crate::kubernetes_convert::selector::{self, ConstraintError};
use crate::model::affinity::{Gang, PodTerm, Preferred, TopologySpread};
use crate::model::labels::Labels;
use crate::model::requirement::Requirements;
use crate::model::selector::Selector;

/// Maximum number of terms of each kind in a pod, and of namespaces in a term. The API limits only
/// the size of an object.
const TERMS_MAX: usize = 100;
const NAMESPACES_MAX: usize = 1000;

/// Maximum length of names of Kubernetes objects.
const NAME_CHARS: usize = 253;

/// Pod label with its PodGroup, if the scheduler runs the coscheduling plugin.
const POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// Pod label with its group, if Kueue manages it.
const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";

/// Required node affinity: the terms that can select a node.
pub(super) fn node_affinity(spec: &PodSpec, defects: &mut Vec<String>) -> Vec<Requirements> {
    const WHAT: &str = "the required node affinity";
    let Some(required) = &spec.affinity.node_affinity.required else {
        return Vec::new();
    };
    let terms = &required.node_selector_terms;
    let terms = convert_terms(terms, WHAT, defects, selector::convert_term);
    let terms: Vec<Requirements> = terms.into_iter().flatten().collect();
    if terms.is_empty() && defects.is_empty() {
        defects.push(format!("{WHAT} selects no node at all"));
    }
    terms
}

/// Preferred node affinity. Invalid preferences are ignored.
pub(super) fn preferred_nodes(preferences: &[PreferredNode]) -> Vec<Preferred<Requirements>> {
    preferences
        .iter()
        .filter_map(|preference| {
            Some(Preferred {
                weight: effective_weight(preference.weight)?,
                term: selector::convert_term(&preference.preference).ok()??,
            })
        })
        .take(TERMS_MAX)
        .collect()
}

/// Required pod affinity or anti-affinity. `what` is its name in defects.
pub(super) fn pod_terms(
    terms: &[PodAffinityTerm],
    meta: &Meta,
    what: &str,
    defects: &mut Vec<String>,
) -> Vec<PodTerm> {
    convert_terms(terms, what, defects, |term| pod_term(term, meta))
}

/// Preferred pod affinity or anti-affinity. Invalid preferences are ignored.
pub(super) fn preferred_pods(
    preferences: &[PreferredPods],
    meta: &Meta,
) -> Vec<Preferred<PodTerm>> {
    preferences
        .iter()
        .filter_map(|preference| {
            Some(Preferred {
                weight: effective_weight(preference.weight)?,
                term: pod_term(&preference.pod_affinity_term, meta).ok()?,
            })
        })
        .take(TERMS_MAX)
        .collect()
}

/// Weight of a preference. `None` if it has no effect.
fn effective_weight(weight: i64) -> Option<i32> {
    let weight = i32::try_from(weight.min(100)).ok()?;
    (weight > 0).then_some(weight)
}

fn pod_term(term: &PodAffinityTerm, meta: &Meta) -> Result<PodTerm, ConstraintError> {
    if term.topology_key.is_empty() {
        return Err(ConstraintError("a term has no topologyKey".to_owned()));
    }
    let count = term.namespaces.len();
    if count > NAMESPACES_MAX {
        return Err(ConstraintError(format!("{count} namespaces are more than are weighed")));
    }
    let selector = merged_selector(
        term.label_selector.as_ref(),
        &term.match_label_keys,
        &term.mismatch_label_keys,
        &meta.labels,
    )?;
    let by_labels = term.namespace_selector.as_ref().map(selector::convert_selector);
    let namespace_selector = by_labels.transpose()?;
    let mut namespaces: BTreeSet<String> = term.namespaces.iter().cloned().collect();
    if namespaces.is_empty() && namespace_selector.is_none() {
        namespaces.insert(meta.namespace.clone());
    }
    Ok(PodTerm {
        selector,
        namespaces,
        namespace_selector,
        topology_key: term.topology_key.clone(),
    })
}

/// The selector with the label keys merged. A missing selector selects nothing, with or without
/// label keys.
fn merged_selector(
    selector: Option<&LabelSelector>,
    matched: &[String],
    mismatched: &[String],
    pod_labels: &Labels,
) -> Result<Option<Selector>, ConstraintError> {
    let Some(selector) = selector else {
        return Ok(None);
    };
    let mut read = selector::convert_selector(selector)?;
    selector::merge_label_keys(&mut read, matched, mismatched, pod_labels)?;
    Ok(Some(read))
}

/// Topology spread constraints.
pub(super) fn spread_constraints(
    spec: &PodSpec,
    pod_labels: &Labels,
    defects: &mut Vec<String>,
) -> Vec<TopologySpread> {
    const WHAT: &str = "the topology spread constraints";
    let constraints = &spec.topology_spread_constraints;
    convert_terms(constraints, WHAT, defects, |constraint| {
        spread_constraint(constraint, pod_labels)
    })
}

fn spread_constraint(
    constraint: &SpreadConstraint,
    pod_labels: &Labels,
) -> Result<TopologySpread, ConstraintError> {
    if constraint.topology_key.is_empty() {
        return Err(ConstraintError("a constraint has no topologyKey".to_owned()));
    }
    let matched = &constraint.match_label_keys;
    let affinity_policy = &constraint.node_affinity_policy;
    Ok(TopologySpread {
        selector: merged_selector(constraint.label_selector.as_ref(), matched, &[], pod_labels)?,
        topology_key: constraint.topology_key.clone(),
        max_skew: positive_count("maxSkew", constraint.max_skew)?,
        min_domains: positive_count("minDomains", constraint.min_domains.unwrap_or(1))?,
        honors_affinity: honors_policy("nodeAffinityPolicy", affinity_policy, true)?,
        honors_taints: honors_policy("nodeTaintsPolicy", &constraint.node_taints_policy, false)?,
        is_hard: match constraint.when_unsatisfiable.as_str() {
            "" | "DoNotSchedule" => true,
            "ScheduleAnyway" => false,
            other => return Err(ConstraintError(format!("whenUnsatisfiable {other:?}"))),
        },
    })
}

/// Returns the value of a field whose minimum is 1.
fn positive_count(name: &str, number: i64) -> Result<u32, ConstraintError> {
    u32::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| ConstraintError(format!("{name} {number} is no count from 1 on")))
}

/// Returns true if a node inclusion policy is `Honor`, or if it is unset and the default is true.
fn honors_policy(name: &str, policy: &str, default: bool) -> Result<bool, ConstraintError> {
    match policy {
        "" => Ok(default),
        "Honor" => Ok(true),
        "Ignore" => Ok(false),
        _ => Err(ConstraintError(format!("the {name} {policy:?}"))),
    }
}

/// Converts the terms up to the maximum number. More terms and invalid terms are defects.
fn convert_terms<T, U>(
    terms: &[T],
    what: &str,
    defects: &mut Vec<String>,
    convert: impl Fn(&T) -> Result<U, ConstraintError>,
) -> Vec<U> {
    let count = terms.len();
    if count > TERMS_MAX {
        defects.push(format!("{what}: {count} terms are more than are weighed"));
    }
    let mut all = Vec::new();
    for term in &terms[..count.min(TERMS_MAX)] {
        match convert(term) {
            Ok(term) => all.push(term),
            Err(why) => defects.push(format!("{what}: {why}")),
        }
    }
    all
}

/// The group of pods that must be scheduled together, as defined by Volcano, the coscheduling
/// plugin or Kueue. Only Kueue sets the number of pods in the pod itself.
pub(super) fn pod_group(meta: &Meta) -> Option<Gang> {
    let annotations = &meta.annotations.0;
    let name = GROUPS.iter().find_map(|key| annotations.get(*key));
    let name = name.or_else(|| meta.labels.get(POD_GROUP));
    if let Some(name) = name.and_then(|name| group_name(name)) {
        return Some(Gang { name, least: None });
    }
    let count = annotations.get(GROUP_COUNT).and_then(|count| count.parse().ok());
    Some(Gang {
        name: group_name(meta.labels.get(KUEUE_GROUP)?)?,
        least: count.filter(|count| *count > 0),
    })
}

/// Returns the name of a group up to the maximum length. `None` if it is empty.
fn group_name(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.chars().take(NAME_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use crate::kubernetes_convert::pod::convert_pod;
    use crate::model::labels::Labels;
    use crate::model::pod::Pod;

    /// Parses a pod of namespace `own` with labels `app=web` and `hash=1`.
    fn read(spec: &str) -> Pod {
        let json = format!(
            r#"{{"metadata": {{"name": "p", "namespace": "own", "labels":
            {{"app": "web", "hash": "1"}}}}, "spec": {{{spec}}}}}"#
        );
        convert_pod(serde_json::from_str(&json).expect("a pod"))
    }

    fn required(kind: &str, terms: &str) -> Pod {
        read(&format!(
            r#""affinity": {{"{kind}":
            {{"requiredDuringSchedulingIgnoredDuringExecution": {terms}}}}}"#
        ))
    }

    fn preferred(kind: &str, terms: &str) -> Pod {
        read(&format!(
            r#""affinity": {{"{kind}":
            {{"preferredDuringSchedulingIgnoredDuringExecution": {terms}}}}}"#
        ))
    }

    #[test]
    fn node_affinity_terms_that_match_no_node_are_dropped() {
        let a = r#"{"matchExpressions": [{"key": "k", "operator": "In", "values": ["a"]}]}"#;
        let never = r#"{"matchExpressions": [{"key": "k", "operator": "Exists"},
            {"key": "k", "operator": "DoesNotExist"}]}"#;
        let node = r#"{"matchFields": [{"key": "metadata.name", "operator": "In",
            "values": ["n"]}]}"#;
        let broken = r#"{"matchExpressions": [{"key": "k", "operator": "Near"}]}"#;
        let cases = [
            (format!("{a}, {node}"), 2, 0),
            (format!("{a}, {never}, {{}}"), 1, 0),
            (never.to_owned(), 0, 1),
            (String::new(), 0, 1),
            (format!("{a}, {broken}"), 1, 1),
            (vec![a; 101].join(","), 100, 1),
        ];
        for (terms, alternatives, defects) in cases {
            let terms = format!(r#"{{"nodeSelectorTerms": [{terms}]}}"#);
            let pod = required("nodeAffinity", &terms);
            assert_eq!(pod.node_affinity.len(), alternatives, "{terms}");
            assert_eq!(pod.defects.len(), defects, "{terms} {:?}", pod.defects);
        }
    }

    #[test]
    fn invalid_preferences_are_ignored() {
        let node = |weight: i64, operator: &str| {
            format!(
                r#"{{"weight": {weight}, "preference": {{"matchExpressions":
                [{{"key": "k", "operator": "{operator}", "values": ["1"]}}]}}}}"#
            )
        };
        let all = [
            node(10, "In"),
            node(20, "Near"),
            node(0, "In"),
            node(-5, "In"),
            node(1000, "Gt"),
            r#"{"weight": 3, "preference": {}}"#.to_owned(),
        ];
        let pod = preferred("nodeAffinity", &format!("[{}]", all.join(",")));
        let weights: Vec<i32> =
            pod.preferred_nodes.iter().map(|preference| preference.weight).collect();
        assert_eq!(weights, [10, 100]);

        let pod_term = |weight: i64, key: &str| {
            format!(
                r#"{{"weight": {weight}, "podAffinityTerm": {{"topologyKey": "{key}",
                "labelSelector": {{}}}}}}"#
            )
        };
        for kind in ["podAffinity", "podAntiAffinity"] {
            let all = [pod_term(7, "zone"), pod_term(8, ""), pod_term(0, "zone")];
            let pod = preferred(kind, &format!("[{}]", all.join(",")));
            let (affinity, anti_affinity) = (&pod.preferred_affinity, &pod.preferred_anti_affinity);
            let (some, none) = if kind == "podAffinity" {
                (affinity, anti_affinity)
            } else {
                (anti_affinity, affinity)
            };
            assert_eq!((some.len(), none.len()), (1, 0), "{kind}");
            assert_eq!((some[0].weight, pod.defects.len()), (7, 0));
        }
    }

    #[test]
    fn affinity_term_selects_pods_by_labels_and_namespace() {
        let same = Labels::from([("app".into(), "web".into()), ("hash".into(), "1".into())]);
        let other = Labels::from([("app".into(), "web".into()), ("hash".into(), "2".into())]);
        let (team, none) = (Labels::from([("team".into(), "x".into())]), Labels::default());
        let web = r#""labelSelector": {"matchLabels": {"app": "web"}}"#;
        // Whether the term selects four kinds of pods: equal and different pods in its own
        // namespace, equal pods in the namespace `far` of team x, and equal pods in the namespace
        // `list` without a team.
        let cases = [
            (web.to_owned(), "yynn"),
            (format!(r#"{web}, "namespaces": ["list"]"#), "nnny"),
            (format!(r#"{web}, "namespaceSelector": {{}}"#), "yyyy"),
            (
                format!(
                    r#"{web}, "namespaces": ["list"],
                    "namespaceSelector": {{"matchLabels": {{"team": "x"}}}}"#
                ),
                "nnyy",
            ),
            (format!(r#"{web}, "matchLabelKeys": ["hash", "no"]"#), "ynnn"),
            (format!(r#"{web}, "mismatchLabelKeys": ["hash"]"#), "nynn"),
            (r#""labelSelector": {}"#.to_owned(), "yynn"),
            (r#""labelSelector": null"#.to_owned(), "nnnn"),
            (r#""matchLabelKeys": ["hash"]"#.to_owned(), "nnnn"),
        ];
        for (term, expect) in cases {
            for kind in ["podAffinity", "podAntiAffinity"] {
                let pod = required(kind, &format!(r#"[{{"topologyKey": "zone", {term}}}]"#));
                let terms = [&pod.affinity, &pod.anti_affinity];
                let [read] = terms[usize::from(kind == "podAntiAffinity")].as_slice() else {
                    panic!("one term: {pod:?}")
                };
                assert_eq!(terms.iter().map(|list| list.len()).sum::<usize>(), 1);
                let got: String = [
                    ("own", &none, &same),
                    ("own", &none, &other),
                    ("far", &team, &same),
                    ("list", &none, &same),
                ]
                .map(|(namespace, team, labels)| read.matches(namespace, Some(team), labels))
                .map(|selected| if selected { 'y' } else { 'n' })
                .into_iter()
                .collect();
                assert_eq!(got, expect, "{kind} {term}");
            }
        }
    }

    #[test]
    fn invalid_pod_affinity_terms_are_defects() {
        let cases = [
            r#"{"labelSelector": {}}"#,
            r#"{"topologyKey": "zone", "labelSelector":
                {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}}"#,
            r#"{"topologyKey": "zone", "namespaceSelector":
                {"matchExpressions": [{"key": "k", "operator": "In"}]}}"#,
        ];
        for kind in ["podAffinity", "podAntiAffinity"] {
            for term in cases {
                let pod = required(kind, &format!("[{term}]"));
                assert_eq!(pod.defects.len(), 1, "{kind} {term}");
            }
            let sound = r#"{"topologyKey": "zone", "labelSelector": {}}"#;
            let many = format!("[{}]", vec![sound; 101].join(","));
            assert_eq!(required(kind, &many).defects.len(), 1, "{kind}");
        }
    }

    #[test]
    fn spread_constraints_get_the_api_defaults() {
        let of = |rest: &str| {
            read(&format!(r#""topologySpreadConstraints": [{{"topologyKey": "zone", {rest}}}]"#))
        };
        // Skew, domains, and whether affinity, taints and the constraint are strict. `None` for a
        // defect.
        let cases = [
            (r#""maxSkew": 1"#, Some((1, 1, true, false, true))),
            (
                r#""maxSkew": 3, "minDomains": 2, "whenUnsatisfiable": "DoNotSchedule""#,
                Some((3, 2, true, false, true)),
            ),
            (
                r#""maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
                "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor""#,
                Some((1, 1, false, true, false)),
            ),
            (r#""maxSkew": 0"#, None),
            (r#""maxSkew": -1"#, None),
            (r#""maxSkew": 4294967296"#, None),
            (r#""maxSkew": 1, "minDomains": 0"#, None),
            (r#""maxSkew": 1, "topologyKey": """#, None),
            (r#""maxSkew": 1, "whenUnsatisfiable": "Perhaps""#, None),
            (r#""maxSkew": 1, "nodeTaintsPolicy": "Perhaps""#, None),
            (
                r#""maxSkew": 1, "labelSelector": {"matchExpressions":
                [{"key": "k", "operator": "Near"}]}"#,
                None,
            ),
        ];
        for (rest, expect) in cases {
            let rest = if rest.contains("topologyKey") {
                // The key itself is invalid here.
                read(r#""topologySpreadConstraints": [{"maxSkew": 1}]"#)
            } else {
                of(rest)
            };
            let got = rest.spread.first().map(|constraint| {
                let strict =
                    (constraint.honors_affinity, constraint.honors_taints, constraint.is_hard);
                (constraint.max_skew, constraint.min_domains, strict.0, strict.1, strict.2)
            });
            assert_eq!(got, expect, "{rest:?}");
            assert_eq!(rest.defects.is_empty(), expect.is_some(), "{rest:?}");
        }
        let selector = |rest: &str| of(rest).spread.remove(0).selector;
        assert_eq!(selector(r#""maxSkew": 1, "matchLabelKeys": ["hash"]"#), None);
        let narrowed = selector(
            r#""maxSkew": 1, "labelSelector": {}, "matchLabelKeys": ["hash", "hash", "no"]"#,
        );
        assert_eq!(narrowed.map_or(0, |selector| selector.expressions().len()), 1);
    }

    #[test]
    fn gang_metadata_of_each_scheduler_is_read() {
        let cases = [
            (r#""annotations": {"scheduling.k8s.io/group-name": "g"}"#, Some(("g", None))),
            (r#""annotations": {"scheduling.volcano.sh/group-name": "v"}"#, Some(("v", None))),
            (r#""labels": {"scheduling.x-k8s.io/pod-group": "x"}"#, Some(("x", None))),
            (
                r#""labels": {"kueue.x-k8s.io/pod-group-name": "k"},
                "annotations": {"kueue.x-k8s.io/pod-group-total-count": "4"}"#,
                Some(("k", Some(4))),
            ),
            (
                r#""labels": {"kueue.x-k8s.io/pod-group-name": "k"},
                "annotations": {"kueue.x-k8s.io/pod-group-total-count": "0"}"#,
                Some(("k", None)),
            ),
            (r#""labels": {"kueue.x-k8s.io/pod-group-name": "k"}"#, Some(("k", None))),
            (r#""annotations": {"scheduling.k8s.io/group-name": ""}"#, None),
            (r#""annotations": {"kueue.x-k8s.io/pod-group-total-count": "4"}"#, None),
            (r#""labels": {"app": "web"}"#, None),
        ];
        for (meta, expect) in cases {
            let json = format!(r#"{{"metadata": {{{meta}}}}}"#);
            let gang = convert_pod(serde_json::from_str(&json).expect("a pod")).gang;
            let got = gang.as_ref().map(|gang| (gang.name.as_str(), gang.least));
            assert_eq!(got, expect, "{meta}");
        }
        let long = format!(
            r#"{{"metadata": {{"annotations": {{"scheduling.k8s.io/group-name": "{}"}}}}}}"#,
            "x".repeat(10_000)
        );
        let gang = convert_pod(serde_json::from_str(&long).expect("a pod")).gang;
        assert_eq!(gang.map_or(0, |gang| gang.name.len()), 253);
    }
}
