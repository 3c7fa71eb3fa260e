//! Converts the installation, fleet and telemetry blocks.

use core::net::IpAddr;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::disruption::budgets;
use crate::config::lower::quantities::node_limits;
use crate::config::lower::schedule::Schedules;
use crate::config::report::{error_at, warning_at};
use crate::config::settings::{LogFormat, LogLevel, MetricNames, Telemetry};
use crate::config::source::Span;
use crate::model::fleet::FleetLimits;
use crate::model::pool::BudgetNodes;

/// The block `outrigger`.
#[derive(Debug, Default)]
pub(super) struct Installation {
    pub(super) name: Option<String>,
    pub(super) dry_run: bool,
    /// True if a name is set, even an invalid one.
    pub(super) named: bool,
    pub(super) header: Option<Span>,
}

pub(super) fn lower_installation(reader: &Decoder<'_>) -> Installation {
    let sections = reader.decode_sections("outrigger");
    let Some(section) = sections.first() else {
        return Installation::default();
    };
    check_version(section);
    Installation {
        name: section.owned_text("installation"),
        dry_run: section.flag("dry_run") == Some(true),
        named: section.is_set("installation"),
        header: Some(section.header),
    }
}

fn check_version(section: &DecodedBlock) {
    let Some(wanted) = section.text("required_version") else {
        return;
    };
    let version = env!("CARGO_PKG_VERSION");
    let span = section.value_span("required_version");
    let finding = match allows_version(wanted, version) {
        Some(true) => return,
        Some(false) => {
            let detail = format!(
                "The configuration requires Outrigger {wanted}, but this is version {version}."
            );
            error_at(ProblemCode::UnsupportedVersion, span, detail)
        }
        None => {
            let detail = format!("{wanted:?} is not a valid version constraint.");
            error_at(ProblemCode::InvalidValue, span, detail)
                .help("write it like \"~> 0.1\" or \">= 0.1, < 0.3\"")
        }
    };
    finding.report(section);
}

/// Returns whether a version meets constraints such as `~> 0.1` or `>= 0.1, < 0.3`. `None` if the
/// constraints are invalid. Missing parts of a version are zero.
fn allows_version(constraints: &str, version: &str) -> Option<bool> {
    let running = version_parts(version)?;
    let mut allowed = true;
    for constraint in constraints.split(',') {
        let constraint = constraint.trim();
        let digits = constraint.find(|c: char| c.is_ascii_digit())?;
        let (operator, wanted) = constraint.split_at(digits);
        let fixed_parts = wanted.split('.').count().max(2) - 1;
        let wanted = version_parts(wanted)?;
        allowed &= match operator.trim() {
            "" | "=" => running == wanted,
            "!=" => running != wanted,
            ">" => running > wanted,
            ">=" => running >= wanted,
            "<" => running < wanted,
            "<=" => running <= wanted,
            // The running version may be greater in the last part of the constraint.
            "~>" => running >= wanted && running[..fixed_parts] == wanted[..fixed_parts],
            _ => return None,
        };
    }
    Some(allowed)
}

fn version_parts(version: &str) -> Option<[u64; 3]> {
    let mut parts = [0; 3];
    for (index, part) in version.split('.').enumerate() {
        *parts.get_mut(index)? = part.parse().ok()?;
    }
    Some(parts)
}

/// The limits of the fleet, and how many nodes of each cluster a reload may disrupt.
pub(super) fn lower_fleet(
    reader: &Decoder<'_>,
    schedules: &Schedules,
) -> (FleetLimits, Option<BudgetNodes>) {
    let sections = reader.decode_sections("fleet");
    let section = sections.first();
    let limits = FleetLimits {
        limits: section.map(node_limits).unwrap_or_default(),
        budgets: section.map(|section| budgets(section, schedules)).unwrap_or_default(),
    };
    (limits, section.and_then(|section| section.budget_nodes("max_disrupted_per_reload")))
}

/// Returns whether a `host:port` is a loopback address. The only accepted host name is `localhost`.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>();
    ip.map_or(host == "localhost", |ip| ip.is_loopback())
}

pub(super) fn lower_telemetry(reader: &Decoder<'_>) -> Telemetry {
    let mut telemetry = Telemetry::default();
    let sections = reader.decode_sections("telemetry");
    let Some(section) = sections.first() else {
        return telemetry;
    };
    telemetry.listen = section.owned_text("listen");
    if let Some(listen) = telemetry.listen.as_deref().filter(|host| !is_loopback(host)) {
        let detail = format!(
            "Other hosts can reach {listen}, and can read the names of clusters, pools and zones: \
             the endpoint has no authentication."
        );
        warning_at(ProblemCode::Exposed, section.value_span("listen"), detail)
            .help("listen on 127.0.0.1 or [::1], or restrict access with a firewall")
            .report(section);
    }
    if let Some(log) = section.block("log") {
        telemetry.log_format = match log.text("format") {
            Some("json") => LogFormat::Json,
            Some("journald") => LogFormat::Journald,
            Some("text") => LogFormat::Text,
            _ => LogFormat::Auto,
        };
        telemetry.log_level = match log.text("level") {
            Some("error") => LogLevel::Error,
            Some("warn") => LogLevel::Warn,
            Some("debug") => LogLevel::Debug,
            Some("trace") => LogLevel::Trace,
            _ => LogLevel::Info,
        };
    }
    let metrics = section.block("metrics");
    if let Some(names) = metrics.and_then(|metrics| metrics.texts("names")) {
        let mut chosen: Vec<MetricNames> = names
            .iter()
            .map(|name| match name.as_str() {
                "karpenter" => MetricNames::Karpenter,
                _ => MetricNames::Outrigger,
            })
            .collect();
        chosen.sort();
        chosen.dedup();
        telemetry.metric_names = chosen;
    }
    telemetry.per_node = metrics.and_then(|metric| metric.flag("per_node")).unwrap_or(false);
    telemetry.otlp = section.block("otlp").and_then(|block| block.owned_text("endpoint"));
    telemetry
}

#[cfg(test)]
mod tests {
    use super::{allows_version, is_loopback};

    #[test]
    fn loopback_addresses_are_recognized() {
        for (address, expect) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("metrics.example:1", false),
        ] {
            assert_eq!(is_loopback(address), expect, "{address}");
        }
    }

    #[test]
    fn version_constraints_follow_terraform_syntax() {
        let cases = [
            ("~> 0.1", "0.1.5", Some(true)),
            ("~> 0.1", "0.9.0", Some(true)),
            ("~> 0.1", "1.0.0", Some(false)),
            ("~> 0.1.2", "0.1.9", Some(true)),
            ("~> 0.1.2", "0.2.0", Some(false)),
            (">= 0.1, < 0.3", "0.2.0", Some(true)),
            (">= 0.1, < 0.3", "0.3.0", Some(false)),
            ("0.1.0", "0.1.0", Some(true)),
            ("!= 0.1.0", "0.1.0", Some(false)),
            ("latest", "0.1.0", None),
            ("=> 1", "0.1.0", None),
            ("1.2.3.4", "0.1.0", None),
        ];
        for (constraints, version, expect) in cases {
            assert_eq!(allows_version(constraints, version), expect, "{constraints} {version}");
        }
    }
}
