//! All outputs of every kind of report, as they are: log lines, activity and metrics.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::sync::Arc;

use insta::{assert_snapshot, with_settings};
use jiff::Timestamp;
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{fmt, registry};

use crate::engine::report::Report;
use crate::engine::report::examples::examples;
use crate::model::id::ClusterName;
use crate::runtime::activity_log::ActivityLog;
use crate::telemetry::record::record_report;

/// The log lines of a report, as text or JSON.
fn lines(cluster: &ClusterName, managed: bool, report: &Report, is_json: bool) -> String {
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    let lines = fmt::layer().with_target(false).without_time();
    let lines = lines.with_writer(Arc::<File>::clone(&file));
    let lines = match is_json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.with_ansi(false).boxed(),
    };
    tracing::subscriber::with_default(registry().with(lines), || {
        record_report(cluster, report, &report.describe(managed));
    });
    let mut text = String::new();
    (&*file).rewind().expect("a file");
    (&*file).read_to_string(&mut text).expect("UTF-8");
    text
}

/// All outputs of a report. The metrics are those of this report alone.
fn outputs(managed: bool, report: &Report) -> String {
    let cluster = ClusterName::from("prod");
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut out =
        metrics::with_local_recorder(&recorder, || lines(&cluster, managed, report, false));
    out += &lines(&cluster, managed, report, true);
    let mut activity = ActivityLog::default();
    // Two consecutive reports show whether the activity log merges them into one line.
    for _ in 0..2 {
        activity.add_report(&report.describe(managed), Timestamp::UNIX_EPOCH);
    }
    for entry in activity.newest_first() {
        let _ = writeln!(out, "{}", serde_json::to_string(&entry).expect("JSON"));
    }
    let metrics = recorder.handle().render();
    let mut metrics: Vec<&str> = metrics.lines().filter(|line| !line.is_empty()).collect();
    metrics.sort_unstable();
    metrics.iter().for_each(|line| out += &format!("{line}\n"));
    out
}

/// The outputs of all example reports, and their outputs in observe mode if these differ.
fn all_outputs() -> String {
    let mut out = String::new();
    for report in examples() {
        let (managed, observed) = (outputs(true, &report), outputs(false, &report));
        let _ = write!(out, "# {report:?}\n{managed}");
        if observed != managed {
            let _ = write!(out, "# in observe mode\n{observed}");
        }
    }
    out
}

#[test]
fn each_report_has_its_log_activity_and_metric_outputs() {
    with_settings!({
        snapshot_path => "../../tests/it/reports",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        assert_snapshot!("outputs", all_outputs());
    });
}
