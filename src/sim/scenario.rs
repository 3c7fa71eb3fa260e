//! A scenario in HCL: workloads, shortages, interruptions and zone outages over a period.

// Typed reader for scenario HCL.
pub mod decode;
// Blocks of a scenario.
pub mod blocks;
// Configuration changes within a scenario.
pub mod reload;

use hcl_edit::Span;
use hcl_edit::structure::{Body, Structure};
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::sim::scenario::blocks::{
    read_capacity, read_interruption, read_outage, read_scenario, read_workload,
};
use crate::sim::scenario::decode::ScenarioDecoder;
use crate::sim::scenario::reload::{blank_out, read_reloads};
use crate::sim::workload::Workload;

/// The built-in scenario: a working day.
pub const WORKING_DAY: &str = include_str!("../../config/scenarios/working-day.hcl");

/// An error in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {text}")]
pub struct Mistake {
    /// Line number, from 1.
    pub line: usize,
    /// Column number, from 1.
    pub column: usize,
    /// The error and its fix.
    pub text: String,
}

/// Offerings with a shortage for some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Instance type, or a prefix followed by `*`. `None` means all types.
    pub instance_type: Option<String>,
    /// Zone. `None` means all zones.
    pub zone: Option<String>,
    /// Capacity type. `None` means all capacity types.
    pub capacity_type: Option<CapacityType>,
    /// Number of instances of each offering that can still be launched.
    pub left: u32,
    /// Start time.
    pub from: Timestamp,
    /// End time. `None` means the end of the scenario.
    pub until: Option<Timestamp>,
}

impl Shortage {
    /// Returns true if the shortage includes an offering.
    pub fn covers_offering(&self, key: &OfferingKey) -> bool {
        self.instance_type.as_ref().is_none_or(|pattern| match pattern.strip_suffix('*') {
            Some(start) => key.instance_type.0.starts_with(start),
            None => *pattern == key.instance_type.0,
        }) && self.zone.as_ref().is_none_or(|zone| *zone == key.zone.0)
            && self.capacity_type.is_none_or(|capacity_type| capacity_type == key.capacity_type)
    }
}

/// Interruption of spot instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotReclaim {
    /// Time of the first interruption notice.
    pub at: Timestamp,
    /// Number of interrupted instances, of those running at that time.
    pub count: ReclaimCount,
    /// Time between the first and the last notice.
    pub within: SignedDuration,
}

/// Number of interrupted spot instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimCount {
    /// A number of instances.
    Count(u32),
    /// A percentage of the running instances, rounded up.
    Share(u32),
}

/// A zone outage: every instance in the zone fails, and nothing can be launched there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The zone.
    pub zone: String,
    /// Start time.
    pub from: Timestamp,
    /// End time. `None` means the end of the scenario.
    pub until: Option<Timestamp>,
}

impl Outage {
    /// The shortage during the outage.
    fn to_shortage(&self) -> Shortage {
        Shortage {
            zone: Some(self.zone.clone()),
            from: self.from,
            until: self.until,
            ..Shortage::default()
        }
    }
}

/// A scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scenario {
    /// Description in one line.
    pub title: String,
    /// Start time.
    pub start: Timestamp,
    /// End time.
    pub end: Timestamp,
    /// Maximum time after the end until the state must be stable.
    pub settle: SignedDuration,
    /// Duration after `settle` in which the engine sends no command.
    pub calm: SignedDuration,
    /// Time between launch and registration of a node.
    pub boot: SignedDuration,
    /// Instance type of the fixed fleet, for comparison of the cost.
    pub fixed_type: TypeName,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The shortages.
    pub shortages: Vec<Shortage>,
    /// Whether EC2 launches the instances of several claims together.
    pub batches: bool,
    /// The interruptions of spot instances.
    pub interruptions: Vec<SpotReclaim>,
    /// The zone outages.
    pub outages: Vec<Outage>,
    /// The blocks of the normal configuration, on their original lines.
    pub config: String,
    /// Later configurations, by time. A replaced block is omitted, and its replacement stays on its
    /// own lines.
    pub reloads: Vec<(Timestamp, String)>,
}

impl Scenario {
    /// Parses a scenario. Returns all errors.
    pub fn parse(source: &str) -> Result<Self, Vec<Mistake>> {
        let source = source.trim_start_matches('\u{feff}');
        let body = hcl_edit::parser::parse_body(source).map_err(|error| {
            let location = error.location();
            let text = error.message().to_owned();
            vec![Mistake { line: location.line(), column: location.column(), text }]
        })?;
        let mut reader = ScenarioDecoder::new(source);
        let scenario = build_scenario(&body, source, &mut reader);
        match (scenario, reader.into_mistakes()) {
            (Some(scenario), mistakes) if mistakes.is_empty() => Ok(scenario),
            (_, mistakes) => Err(mistakes),
        }
    }
}

/// Blocks of a scenario. All other blocks are the configuration of the cluster.
const OURS: [&str; 6] = ["scenario", "workload", "capacity", "interruption", "outage", "reload"];

fn build_scenario(body: &Body, source: &str, reader: &mut ScenarioDecoder<'_>) -> Option<Scenario> {
    let Some(head) = body.get_blocks("scenario").next() else {
        reader
            .add_mistake(0, "there is no scenario block: write `scenario { duration = \"24h\" }`");
        return None;
    };
    let mut scenario = read_scenario(reader, head)?;
    if let Some(second) = body.get_blocks("scenario").nth(1) {
        reader.add_mistake_in(second, "a scenario has one scenario block");
    }
    for block in body.get_blocks("workload") {
        let Some(workload) = read_workload(reader, block, scenario.start) else {
            continue;
        };
        if scenario.workloads.iter().any(|other| other.name == workload.name) {
            let text = format!("there is another workload {:?}", workload.name);
            reader.add_mistake_in(block, &text);
        }
        scenario.workloads.push(workload);
    }
    for block in body.get_blocks("capacity") {
        scenario.shortages.extend(read_capacity(reader, block, scenario.start));
    }
    for block in body.get_blocks("interruption") {
        scenario.interruptions.extend(read_interruption(reader, block, scenario.start));
    }
    for block in body.get_blocks("outage") {
        let read = read_outage(reader, block, scenario.start);
        scenario.shortages.extend(read.as_ref().map(Outage::to_shortage));
        scenario.outages.extend(read);
    }
    let blocks = body.iter().filter_map(Structure::as_block);
    let (scenario_blocks, config): (Vec<_>, Vec<_>) =
        blocks.partition(|block| OURS.contains(&block.ident.as_str()));
    let scenario_parts: Vec<_> = scenario_blocks.into_iter().filter_map(Span::span).collect();
    scenario.config = blank_out(source, &scenario_parts);
    scenario.reloads = read_reloads(body, config, source, scenario.start, reader);
    Some(scenario)
}
