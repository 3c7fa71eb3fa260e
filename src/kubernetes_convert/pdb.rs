//! Converts a PodDisruptionBudget and reports its defects.

use serde_json::Value;

use super::{object_key, pod, selector};
use crate::kubernetes_convert::api_types::PodDisruptionBudget;
use crate::model::pdb::{Bound, Pdb};

/// Maximum number of reported defects of a budget.
const DEFECTS: usize = 5;

/// Converts a budget. If the controller has not observed its latest generation, no disruption is
/// allowed.
pub(super) fn convert_pdb(read: PodDisruptionBudget) -> Pdb {
    let (spec, status) = (read.spec, read.status);
    let mut defects = Vec::new();
    let selector = spec.selector.map(|selector| {
        let (selector, fault) = selector::protecting_selector(&selector);
        defects.extend(fault.map(|why| format!("its selector: {why}; it covers more for it")));
        if selector.is_impossible() {
            defects.push("its selector contradicts itself: it covers no pod".to_owned());
        }
        selector
    });
    let min_available = parse_bound("minAvailable", spec.min_available.as_ref(), &mut defects);
    let max_unavailable =
        parse_bound("maxUnavailable", spec.max_unavailable.as_ref(), &mut defects);
    for (name, count) in [
        ("disruptionsAllowed", status.disruptions_allowed),
        ("expectedPods", status.expected_pods),
        ("currentHealthy", status.current_healthy),
        ("desiredHealthy", status.desired_healthy),
    ] {
        if count < 0 {
            defects.push(format!("its {name}, {count}, is below zero, and counts as none"));
        }
    }
    let unready_may_go = match spec.unhealthy_pod_eviction_policy.as_str() {
        "AlwaysAllow" => true,
        "" | "IfHealthyBudget" => false,
        other => {
            defects.push(format!("its unhealthyPodEvictionPolicy, {other:?}, is not known"));
            false
        }
    };
    defects.truncate(DEFECTS);
    let is_observed = status.observed_generation >= read.metadata.generation;
    Pdb {
        selector,
        min_available,
        max_unavailable,
        disruptions_allowed: if is_observed { status.disruptions_allowed.max(0) } else { 0 },
        expected_pods: status.expected_pods.max(0),
        current_healthy: status.current_healthy.max(0),
        desired_healthy: status.desired_healthy.max(0),
        unready_may_go,
        defects: defects.iter().map(|defect| pod::clip_text(defect)).collect(),
        key: object_key(read.metadata),
    }
}

/// Parses a bound. `None` if it is missing or invalid.
fn parse_bound(name: &str, read: Option<&Value>, defects: &mut Vec<String>) -> Option<Bound> {
    let read = read?;
    let bound = match read {
        Value::Number(number) => number.as_i64().filter(|count| *count >= 0).map(Bound::Count),
        Value::String(text) => text.strip_suffix('%').and_then(parse_percent),
        _ => None,
    };
    if bound.is_none() {
        defects.push(format!("its {name}, {read}, is neither a count nor a percentage"));
    }
    bound
}

fn parse_percent(digits: &str) -> Option<Bound> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).map(Bound::Percent)
}

#[cfg(test)]
mod tests {
    use super::convert_pdb;
    use crate::model::labels::Labels;
    use crate::model::pdb::{Bound, Pdb};

    fn read(spec: &str, status: &str) -> Pdb {
        let json = format!(
            r#"{{"metadata": {{"namespace": "a", "name": "b", "generation": 2}},
            "spec": {spec}, "status": {status}}}"#
        );
        convert_pdb(serde_json::from_str(&json).expect("a PDB"))
    }

    const STATUS: &str = r#"{"observedGeneration": 2, "disruptionsAllowed": 1, "expectedPods": 3,
        "currentHealthy": 3, "desiredHealthy": 2}"#;

    #[test]
    fn pdb_status_is_read_unless_outdated() {
        let pdb = read(
            r#"{"selector": {"matchLabels": {"app": "w"}}, "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow"}"#,
            STATUS,
        );
        assert_eq!(pdb.key.to_string(), "a/b");
        assert_eq!(pdb.max_unavailable, Some(Bound::Count(1)));
        assert_eq!((pdb.min_available, pdb.unready_may_go), (None, true));
        let counted = (pdb.expected_pods, pdb.current_healthy, pdb.desired_healthy);
        assert_eq!((pdb.disruptions_allowed, counted), (1, (3, 3, 2)));
        assert_eq!(pdb.defects, [""; 0]);
        let old = STATUS.replace("\"observedGeneration\": 2", "\"observedGeneration\": 1");
        assert_eq!(read("{}", &old).disruptions_allowed, 0, "the status is outdated");
        assert_eq!(read("null", "null").disruptions_allowed, 0);
    }

    #[test]
    fn pdb_selector_covers_all_no_or_some_pods() {
        let labels = Labels::from([("app".to_owned(), "w".to_owned())]);
        let expression = |operator: &str, values: &str| {
            format!(
                r#"{{"selector": {{"matchLabels": {{"app": "w"}}, "matchExpressions": [
                {{"key": "app", "operator": "{operator}", "values": [{values}]}}]}}}}"#
            )
        };
        // Whether it selects a pod with the label and one without, and the number of defects.
        let cases = [
            ("{}".to_owned(), [false, false], 0),
            (r#"{"selector": null}"#.to_owned(), [false, false], 0),
            (r#"{"selector": {}}"#.to_owned(), [true, true], 0),
            (expression("In", r#""w""#), [true, false], 0),
            (expression("In", r#""x""#), [false, false], 1),
            (expression("NotIn", r#""w""#), [false, false], 1),
            (expression("In", ""), [true, false], 1),
            (expression("Near", r#""x""#), [true, false], 1),
        ];
        for (spec, expect, defects) in cases {
            let pdb = read(&spec, STATUS);
            let selects = |labels: &Labels| {
                let selector = pdb.selector.as_ref();
                selector.is_some_and(|selector| selector.matches(labels))
            };
            let got = [selects(&labels), selects(&Labels::new())];
            assert_eq!((got, pdb.defects.len()), (expect, defects), "{spec}");
        }
    }

    #[test]
    fn invalid_pdb_bounds_are_defects_and_ignored() {
        let cases = [
            ("1", Some(Bound::Count(1)), 0),
            ("0", Some(Bound::Count(0)), 0),
            (r#""50%""#, Some(Bound::Percent(50)), 0),
            (r#""0%""#, Some(Bound::Percent(0)), 0),
            (r#""250%""#, Some(Bound::Percent(250)), 0),
            ("null", None, 0),
            ("-1", None, 1),
            (r#""1""#, None, 1),
            (r#""-5%""#, None, 1),
            (r#""+5%""#, None, 1),
            (r#""99999999999999999999%""#, None, 1),
            (r#""%""#, None, 1),
            ("1.5", None, 1),
            ("[1]", None, 1),
            ("true", None, 1),
        ];
        for (text, expect, defects) in cases {
            for name in ["minAvailable", "maxUnavailable"] {
                let pdb = read(&format!(r#"{{"{name}": {text}}}"#), STATUS);
                let got = pdb.min_available.or(pdb.max_unavailable);
                assert_eq!((got, pdb.defects.len()), (expect, defects), "{name} {text}");
            }
        }
    }

    #[test]
    fn invalid_pdb_values_are_clamped_and_reported_as_defects() {
        let status = r#"{"observedGeneration": 2, "disruptionsAllowed": -1, "expectedPods": -2,
            "currentHealthy": -3, "desiredHealthy": -9223372036854775808}"#;
        let long = "x".repeat(10_000);
        let spec = format!(r#"{{"minAvailable": "{long}", "unhealthyPodEvictionPolicy": "Odd"}}"#);
        let pdb = read(&spec, status);
        let counted = (pdb.expected_pods, pdb.current_healthy, pdb.desired_healthy);
        assert_eq!((pdb.disruptions_allowed, counted), (0, (0, 0, 0)));
        assert_eq!(pdb.defects.len(), 5);
        assert!(pdb.defects.iter().all(|it| it.chars().count() <= 250));
    }
}
