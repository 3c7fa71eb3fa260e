//! Total requests of a pod, as kube-scheduler computes them: spec/scheduling.md §2.13.

use std::collections::BTreeMap;

use crate::kubernetes_convert::api_types::{
    Container, ContainerResources, ContainerStatus, PodSpec, PodStatus,
};
use crate::kubernetes_convert::quantity::Quantity;
use crate::model::quantity::Resources;

/// Computes the requests of a pod. Invalid values are added to `defects`.
pub(super) fn pod_requests(
    spec: &PodSpec,
    status: &PodStatus,
    defects: &mut Vec<String>,
) -> Resources {
    let infeasible = status.conditions.iter().any(|it| {
        it.kind == "PodResizePending" && it.status == "True" && it.reason == "Infeasible"
    });
    let mut sum = Resources::default();
    for container in &spec.containers {
        let running = status.container_statuses.iter().find(|it| it.name == container.name);
        sum.add(&container_requests(container, running, infeasible, defects));
    }
    // Sidecars run concurrently with the containers and with every init container declared after
    // them.
    let mut sidecars = Resources::default();
    let mut init_peak = Resources::default();
    for container in &spec.init_containers {
        let mut requested = requests_or_limits(&container.resources, defects);
        if container.restart_policy == "Always" {
            sum.add(&requested);
            sidecars.add(&requested);
            requested = sidecars.clone();
        } else {
            requested.add(&sidecars);
        }
        init_peak.raise_to(&requested);
    }
    sum.raise_to(&init_peak);
    override_by_pod(&mut sum, &spec.resources, defects);
    sum.add(&parse_quantities(&spec.overhead, defects));
    sum.pods = 1;
    sum
}

/// Requests of a container: the maximum of its spec and the resources allocated by the kubelet. An
/// infeasible resize is ignored.
fn container_requests(
    container: &Container,
    running: Option<&ContainerStatus>,
    infeasible: bool,
    defects: &mut Vec<String>,
) -> Resources {
    let given = running
        .filter(|it| !(it.resources.requests.is_empty() && it.allocated_resources.is_empty()));
    let Some(given) = given else {
        return requests_or_limits(&container.resources, defects);
    };
    let mut total = if infeasible {
        Resources::default()
    } else {
        requests_or_limits(&container.resources, defects)
    };
    total.raise_to(&parse_quantities(&given.resources.requests, defects));
    total.raise_to(&parse_quantities(&given.allocated_resources, defects));
    total
}

/// Requests, with limits as the default. The API server sets this default in pods, and not in the
/// templates of DaemonSets.
fn requests_or_limits(resources: &ContainerResources, defects: &mut Vec<String>) -> Resources {
    let mut requested = parse_quantities(&resources.requests, defects);
    let missing: BTreeMap<_, _> = resources
        .limits
        .iter()
        .filter(|(name, _)| !resources.requests.contains_key(*name))
        .map(|(name, quantity)| (name.clone(), quantity.clone()))
        .collect();
    if !missing.is_empty() {
        requested.add(&parse_quantities(&missing, defects));
    }
    requested
}

/// Requests at pod level override the sum of the containers.
fn override_by_pod(
    sum: &mut Resources,
    pod_resources: &ContainerResources,
    defects: &mut Vec<String>,
) {
    if pod_resources.requests.is_empty() && pod_resources.limits.is_empty() {
        return;
    }
    let names: Vec<String> = pod_resources
        .requests
        .keys()
        .chain(pod_resources.limits.keys())
        .filter(|name| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-"))
        // A limit without a request becomes the request, if no container requests the resource.
        .filter(|name| {
            pod_resources.requests.contains_key(*name)
                || (pod_resources.limits.contains_key(*name) && sum.get(name) == 0)
        })
        .cloned()
        .collect();
    let requested = requests_or_limits(pod_resources, defects);
    for name in names {
        sum.set_amount(&name, requested.get(&name));
    }
}

fn parse_quantities(
    quantities: &BTreeMap<String, Quantity>,
    defects: &mut Vec<String>,
) -> Resources {
    let mut resources = Resources::default();
    for (name, quantity) in quantities {
        if let Err(error) = resources.set_quantity(name, &quantity.0) {
            defects.push(format!("the amount of {name:?}: {error}"));
        } else if resources.get(name) < 0 {
            defects.push(format!("the amount of {name:?}: {:?} is negative", quantity.0));
        }
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::pod_requests;
    use crate::kubernetes_convert::api_types::Pod;

    fn check(pod: &str, expect: &str) {
        let pod: Pod = serde_json::from_str(pod).expect("a pod");
        let mut defects = Vec::new();
        let sum = pod_requests(&pod.spec, &pod.status, &mut defects);
        assert_eq!(sum.to_string(), expect, "{defects:?}");
    }

    #[test]
    fn container_requests_add_up_and_limits_replace_missing_ones() {
        check(
            r#"{"spec": {"containers": [
                {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 1, "memory": "1Gi"}}},
                {"resources": {"requests": {"cpu": "250m", "nvidia.com/gpu": "1"}}}]}}"#,
            "cpu 750m, memory 1.0Gi, pods 1, nvidia.com/gpu 1",
        );
    }

    #[test]
    fn init_container_peak_includes_sidecars_declared_before() {
        check(
            r#"{"spec": {"overhead": {"memory": "64Mi"},
                "containers": [{"resources": {"requests": {"cpu": "1"}}}],
                "initContainers": [
                {"resources": {"requests": {"cpu": "1500m"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "400m"}}},
                {"resources": {"requests": {"cpu": "2"}}}]}}"#,
            "cpu 2400m, memory 64Mi, pods 1",
        );
    }

    #[test]
    fn null_request_counts_as_none() {
        check(
            r#"{"spec": {"containers": [
                {"resources": {"requests": {"cpu": "1", "memory": null}}}]}}"#,
            "cpu 1, pods 1",
        );
    }

    #[test]
    fn pod_level_resources_override_container_requests() {
        check(
            r#"{"spec": {"resources": {"requests": {"cpu": "3"}, "limits": {"memory": "2Gi"}},
                "containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}"#,
            "cpu 3, memory 1.0Gi, pods 1",
        );
    }

    #[test]
    fn larger_allocated_resources_override_requests() {
        check(
            r#"{"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]},
                "status": {"containerStatuses": [
                {"name": "a", "allocatedResources": {"cpu": "2"}}]}}"#,
            "cpu 2, pods 1",
        );
    }
}
