//! Metrics that Karpenter's two Grafana dashboards use exist, with the labels for grouping and
//! filtering.

use std::fs;

use super::fixture::{Setup, client, deploy, free_port, plane, scale, until, until_ready};
use crate::end_to_end::process::get;

/// Node labels that the dashboards filter by.
const OF_NODE: [&str; 5] = ["arch", "capacity_type", "instance_type", "nodepool", "zone"];

/// Returns the series of the capacity and performance dashboards, with the labels and values that
/// their queries name. Source: `karpenter-capacity-dashboard.json` and
/// `karpenter-performance-dashboard.json` of Karpenter's documentation, version 1.14. The series of
/// the node exporter for node ages are left out.
fn asked() -> Vec<(&'static str, Vec<String>)> {
    let mut all = Vec::new();
    let mut ask = |name: &'static str, labels: &[&str]| {
        all.push((name, labels.iter().map(|own| (*own).to_owned()).collect()));
    };
    for name in [
        "karpenter_nodes_created_total",
        "karpenter_nodes_terminated_total",
        "karpenter_nodeclaims_disrupted_total",
    ] {
        ask(name, &["cluster", "nodepool"]);
    }
    ask("karpenter_voluntary_disruption_eligible_nodes", &["reason"]);
    ask(
        "karpenter_voluntary_disruption_decisions_total",
        &["cluster", "nodepool", "consolidation_type", "decision"],
    );
    let of_pod = [&OF_NODE[..], &["namespace", "node", "phase"]].concat();
    ask("karpenter_pods_state", &of_pod);
    for resource in ["resource_type=\"cpu\"", "resource_type=\"memory\""] {
        ask("karpenter_nodepools_usage", &["nodepool", resource]);
        ask("karpenter_nodepools_limit", &["nodepool", resource]);
    }
    for resource in ["cpu", "memory", "pods"] {
        let resource = format!("resource_type=\"{resource}\"");
        let labels = [&OF_NODE[..], &["node_name", &resource]].concat();
        ask("karpenter_nodes_allocatable", &labels);
        ask("karpenter_nodes_total_daemon_requests", &labels);
        ask("karpenter_nodes_total_pod_requests", &labels);
    }
    for quantile in ["0", "0.5", "0.9", "0.99", "1"] {
        let quantile = format!("quantile=\"{quantile}\"");
        ask("karpenter_nodes_termination_duration_seconds", &[&quantile]);
        ask("karpenter_pods_startup_duration_seconds", &[&quantile]);
    }
    let passes = "controller_runtime_reconcile_time_seconds_bucket";
    ask(passes, &["controller", "le"]);
    ask("controller_runtime_reconcile_time_seconds_count", &["controller"]);
    ask("controller_runtime_reconcile_total", &["controller"]);
    all
}

/// Whether a scrape has a series with these labels.
fn has(scrape: &str, (name, labels): &(&str, Vec<String>)) -> bool {
    let series = scrape.lines().filter_map(|line| line.strip_prefix(*name)?.strip_prefix('{'));
    series.filter_map(|own| own.split_once("} ")).any(|(own, _)| {
        // An empty label counts as absent.
        let named = |wanted: &str| {
            own.split(',').any(|label| {
                label.starts_with(&format!("{wanted}=\"")) && !label.ends_with("=\"\"")
            })
        };
        labels.iter().all(|wanted| match wanted.contains('=') {
            true => own.split(',').any(|label| label == *wanted),
            false => named(wanted),
        })
    })
}

/// Returns the sum of a series over all labels.
fn sum(scrape: &str, name: &str) -> f64 {
    let lines = scrape.lines().filter_map(|line| line.strip_prefix(name));
    let values = lines.filter_map(|own| own.strip_prefix('{')?.rsplit_once(' '));
    values.map(|(_, value)| value.parse::<f64>().expect("a number")).sum()
}

/// Scrapes until `is_right` accepts the text. Gauges are updated every ten seconds.
async fn scraped(address: &str, is_right: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for _ in 0..60 {
        text = get(address, "/metrics").1;
        if is_right(&text) {
            return text;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    panic!("not as expected within half a minute:\n{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_series_of_karpenters_dashboards_exist() {
    let name = "plane::dashboards::all_series_of_karpenters_dashboards_exist";
    let Some(plane) = plane(name) else { return };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.daemons().as_path())], Some(port));
    let file = setup.path().join("outrigger.hcl");
    let text = fs::read_to_string(&file).expect("it was written");
    let telemetry = "telemetry {\n";
    let pool = "pool \"general\" {\n";
    let text = text
        .replace(telemetry, &format!("{telemetry}  metrics {{ per_node = true }}\n"))
        .replace(pool, &format!("{pool}  limits = {{ cpu = \"400\", memory = \"2Ti\" }}\n"));
    fs::write(&file, text).expect("the configuration is written");
    let _cloud = setup.cloud(port);
    let _daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    let address = setup.admin();
    deploy(&api, "small", 20, "900m", "3100Mi").await;
    let world = until(&api, &setup, 90, "all pods bound", |world| world.bound() == 20).await;
    let nodes = u32::try_from(world.nodes.len()).expect("few");
    let full = scraped(&address, |text| {
        let shown = sum(text, "karpenter_cluster_state_node_count");
        shown == f64::from(nodes) && sum(text, "karpenter_pods_state") >= 20.0
    })
    .await;
    scale(&api, "small", 0).await;
    until(&api, &setup, 120, "every node gone", |world| world.nodes.is_empty()).await;
    // Series of removed nodes are removed.
    let empty = scraped(&address, |text| {
        sum(text, "karpenter_nodes_terminated_total") > 0.0 && !text.contains("node_name=")
    })
    .await;
    let missing: Vec<_> =
        asked().into_iter().filter(|own| !has(&full, own) && !has(&empty, own)).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{full}\nnor in\n{empty}");
}
