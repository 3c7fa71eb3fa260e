//! A scenario: what runs over a day, what runs short, what is taken back; read from HCL.
//! It must not know the cluster's configuration, which it passes on as text.

// Typed reader for scenario HCL.
pub mod decode;
// Blocks of a scenario.
pub mod blocks;
// Configuration changes within a scenario.
pub mod reload;

use std::fmt;

use hcl_edit::Span;
use hcl_edit::structure::{Body, Structure};
use jiff::{SignedDuration, Timestamp};

use crate::model::id::TypeName;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::sim::scenario::blocks::{
    read_capacity, read_interruption, read_outage, read_scenario, read_workload,
};
use crate::sim::scenario::decode::ScenarioDecoder;
use crate::sim::scenario::reload::{reloads, without};
use crate::sim::workload::Workload;

/// The built-in scenario: a working day.
pub const WORKING_DAY: &str = include_str!("../../config/scenarios/working-day.hcl");

/// Something in a scenario that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

/// Offerings that run short for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Only this type, or those that begin with what stands before a `*`; none means all.
    pub instance_type: Option<String>,
    /// Only this zone; none means all.
    pub zone: Option<String>,
    /// Only bought like this; none means every way.
    pub capacity_type: Option<CapacityType>,
    /// How many more of each may be launched.
    pub left: u32,
    /// From when.
    pub from: Timestamp,
    /// Until when; none means to the end.
    pub until: Option<Timestamp>,
}

impl Shortage {
    /// Whether an offering is among them.
    pub fn covers(&self, key: &OfferingKey) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => key.instance_type.0.starts_with(start),
            None => *pattern == key.instance_type.0,
        };
        self.instance_type.as_ref().is_none_or(fits)
            && self.zone.as_ref().is_none_or(|zone| *zone == key.zone.0)
            && self
                .capacity_type
                .is_none_or(|way| way == key.capacity_type)
    }
}

/// Spot instances that are taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpotReclaim {
    /// When they are told; the first of them, where they are told one after another.
    pub at: Timestamp,
    /// How many, of those that run then.
    pub count: ReclaimCount,
    /// How long it takes until the last of them is told.
    pub within: SignedDuration,
}

/// How many spot instances are taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimCount {
    /// So many.
    Count(u32),
    /// This share of them: per cent, rounded up.
    Share(u32),
}

/// A zone that is lost: every instance in it fails, and nothing can be launched there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The zone.
    pub zone: String,
    /// From when.
    pub from: Timestamp,
    /// Until when; none means to the end.
    pub until: Option<Timestamp>,
}

impl Outage {
    /// What cannot be launched meanwhile.
    fn shortage(&self) -> Shortage {
        Shortage {
            instance_type: None,
            zone: Some(self.zone.clone()),
            capacity_type: None,
            left: 0,
            from: self.from,
            until: self.until,
        }
    }
}

/// A day in a cluster's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What it shows, in one line.
    pub title: String,
    /// When it begins.
    pub start: Timestamp,
    /// When it ends.
    pub end: Timestamp,
    /// How long it may take after that until all has come to rest.
    pub settle: SignedDuration,
    /// For how long nothing may be done then.
    pub calm: SignedDuration,
    /// Time from a launch until the kubelet registers.
    pub boot: SignedDuration,
    /// The type that the same day is priced on for comparison.
    pub fixed_type: TypeName,
    /// What runs.
    pub workloads: Vec<Workload>,
    /// What runs short.
    pub shortages: Vec<Shortage>,
    /// What is taken back.
    pub interruptions: Vec<SpotReclaim>,
    /// Which zones are lost.
    pub outages: Vec<Outage>,
    /// The blocks of the normal configuration, on the lines where they stood.
    pub config: String,
    /// What the configuration becomes later, and when, by time: the same with some blocks replaced,
    /// on the lines where these stand.
    pub reloads: Vec<(Timestamp, String)>,
}

impl Scenario {
    /// Reads a scenario. All mistakes are found in one go.
    pub fn parse(source: &str) -> Result<Self, Vec<Mistake>> {
        let source = source.trim_start_matches('\u{feff}');
        let body = hcl_edit::parser::parse_body(source).map_err(|error| {
            let place = error.location();
            let text = error.message().to_owned();
            vec![Mistake {
                line: place.line(),
                column: place.column(),
                text,
            }]
        })?;
        let mut reader = ScenarioDecoder::new(source);
        let scenario = assemble(&body, source, &mut reader);
        match (scenario, reader.mistakes()) {
            (Some(scenario), mistakes) if mistakes.is_empty() => Ok(scenario),
            (_, mistakes) => Err(mistakes),
        }
    }
}

/// The blocks that are ours; all others are the cluster's configuration.
const OURS: [&str; 6] = [
    "scenario",
    "workload",
    "capacity",
    "interruption",
    "outage",
    "reload",
];

fn assemble(body: &Body, source: &str, reader: &mut ScenarioDecoder<'_>) -> Option<Scenario> {
    let Some(head) = body.get_blocks("scenario").next() else {
        reader.mistake(
            0,
            "there is no scenario block: write `scenario { duration = \"24h\" }`",
        );
        return None;
    };
    let mut scenario = read_scenario(reader, head)?;
    if let Some(second) = body.get_blocks("scenario").nth(1) {
        reader.mistake(start_of(second), "a scenario has one scenario block");
    }
    for block in body.get_blocks("workload") {
        let Some(workload) = read_workload(reader, block, scenario.start) else {
            continue;
        };
        if scenario
            .workloads
            .iter()
            .any(|other| other.name == workload.name)
        {
            let text = format!("there is another workload {:?}", workload.name);
            reader.mistake(start_of(block), &text);
        }
        scenario.workloads.push(workload);
    }
    for block in body.get_blocks("capacity") {
        scenario
            .shortages
            .extend(read_capacity(reader, block, scenario.start));
    }
    for block in body.get_blocks("interruption") {
        scenario
            .interruptions
            .extend(read_interruption(reader, block, scenario.start));
    }
    for block in body.get_blocks("outage") {
        let read = read_outage(reader, block, scenario.start);
        scenario
            .shortages
            .extend(read.as_ref().map(Outage::shortage));
        scenario.outages.extend(read);
    }
    let blocks = body.iter().filter_map(Structure::as_block);
    let (ours, config): (Vec<_>, Vec<_>) =
        blocks.partition(|block| OURS.contains(&block.ident.as_str()));
    let ours: Vec<_> = ours.into_iter().filter_map(Span::span).collect();
    scenario.config = without(source, &ours);
    scenario.reloads = reloads(body, config, source, scenario.start, reader);
    Some(scenario)
}

fn start_of(item: &impl Span) -> usize {
    item.span().map_or(0, |span| span.start)
}
