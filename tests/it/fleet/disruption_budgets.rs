//! Fleet disruption budgets: the limit for all clusters, and no grant for the nodes of another
//! cluster.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use outrigger::engine::command::Command;
use outrigger::fleet::PATIENCE;
use outrigger::model::fleet::{DisruptionUsage, FleetLimits};
use outrigger::model::pool::{Budget, BudgetNodes, Rate, Reason};
use outrigger::provider::CommandResult;

use super::fixture::{Stage, cluster};

fn budget(nodes: BudgetNodes, rate: Option<&str>) -> FleetLimits {
    FleetLimits {
        budgets: vec![Budget {
            nodes,
            rate: rate.and_then(Rate::parse),
            reasons: vec![Reason::Empty, Reason::Drifted],
            during: None,
        }],
        ..FleetLimits::default()
    }
}

fn report_nodes(stage: &mut Stage, cluster: &str, nodes: usize, unready: usize, leaving: &[&str]) {
    let disruption_usage = DisruptionUsage {
        nodes,
        unready,
        leaving: leaving.iter().map(|own| (*own).into()).collect(),
        let_go: BTreeMap::new(),
    };
    let answer = stage.command(cluster, Command::ReportDisruptions(Box::new(disruption_usage)));
    assert_eq!(answer, CommandResult::Done);
}

fn request_disruption(
    stage: &mut Stage,
    cluster: &str,
    claim: &str,
    reason: Reason,
) -> Result<(), String> {
    let claim = claim.into();
    match stage.command(cluster, Command::RequestDisruption { claim, reason }) {
        CommandResult::Granted => Ok(()),
        CommandResult::Denied { why, .. } => Err(why),
        other => panic!("{other:?}"),
    }
}

/// Returns a fleet with two clusters of ten nodes each that have reported.
fn two_clusters(limits: FleetLimits) -> Stage {
    let mut stage = Stage::new(limits, &[cluster("east"), cluster("west")]);
    report_nodes(&mut stage, "east", 10, 0, &[]);
    report_nodes(&mut stage, "west", 10, 0, &[]);
    stage
}

#[test]
fn fleet_disruption_budget_is_shared_by_all_clusters() {
    let mut stage = two_clusters(budget(BudgetNodes::Percent(10), None));
    let empty = Reason::Empty;
    assert_eq!(request_disruption(&mut stage, "east", "a", empty), Ok(()));
    assert_eq!(
        request_disruption(&mut stage, "east", "a", empty),
        Ok(()),
        "a repeated request counts once"
    );
    assert_eq!(request_disruption(&mut stage, "west", "b", empty), Ok(()));
    let full = "the disruption budget of the fleet allows 2 node(s) at a time";
    assert_eq!(request_disruption(&mut stage, "west", "c", empty), Err(full.to_owned()));
    assert_eq!(request_disruption(&mut stage, "east", "d", Reason::Drifted), Err(full.to_owned()));
    // A reason that no budget names is not limited.
    assert_eq!(request_disruption(&mut stage, "east", "e", Reason::Expired), Ok(()));
    report_nodes(&mut stage, "east", 9, 0, &[]);
    assert_eq!(request_disruption(&mut stage, "west", "c", empty), Ok(()));
    report_nodes(&mut stage, "west", 10, 1, &["b"]);
    assert_eq!(request_disruption(&mut stage, "east", "d", empty), Err(full.to_owned()));
}

#[test]
fn other_clusters_see_granted_disruptions() {
    let mut stage = two_clusters(budget(BudgetNodes::Nodes(3), Some("5/h")));
    assert_eq!(request_disruption(&mut stage, "east", "a", Reason::Empty), Ok(()));
    stage.advance(2);
    let view = stage.views["west"].clone().expect("a view");
    assert_eq!((view.others.nodes, view.others.disrupted), (10, 1));
    let at = Timestamp::from_second(1_800_000_000).expect("in range");
    assert_eq!(view.others.let_go, [(at, Reason::Empty)]);
    assert_eq!(view.budgets.len(), 1);
    assert!(!view.is_limited());
    let view = stage.views["east"].clone().expect("a view");
    assert_eq!((view.others.nodes, view.others.disrupted), (10, 0));
}

#[test]
fn fleet_disruption_rate_counts_all_clusters() {
    let mut stage = two_clusters(budget(BudgetNodes::Percent(100), Some("2/h")));
    assert_eq!(request_disruption(&mut stage, "east", "a", Reason::Empty), Ok(()));
    stage.advance(600);
    assert_eq!(request_disruption(&mut stage, "west", "b", Reason::Drifted), Ok(()));
    let until = stage.now + SignedDuration::from_mins(50);
    let full = format!("the disruption budget of the fleet is used up (2/h), until {until}");
    assert_eq!(request_disruption(&mut stage, "west", "c", Reason::Empty), Err(full));
    stage.advance(2999);
    assert!(request_disruption(&mut stage, "east", "d", Reason::Empty).is_err());
    stage.advance(1);
    assert_eq!(request_disruption(&mut stage, "east", "d", Reason::Empty), Ok(()));
}

#[test]
fn cluster_without_a_node_report_gets_no_grant_and_delays_others() {
    let limits = || budget(BudgetNodes::Nodes(2), None);
    let mut stage = Stage::new(limits(), &[cluster("east"), cluster("west")]);
    let own = "the cluster has not reported its nodes yet".to_owned();
    assert_eq!(request_disruption(&mut stage, "east", "a", Reason::Empty), Err(own.clone()));
    report_nodes(&mut stage, "east", 10, 0, &[]);
    let other = "the budgets of the fleet are not known yet: cluster west has not reported its \
                 nodes";
    assert_eq!(request_disruption(&mut stage, "east", "a", Reason::Empty), Err(other.to_owned()));
    stage.advance(PATIENCE.as_secs());
    assert_eq!(request_disruption(&mut stage, "east", "a", Reason::Empty), Ok(()));
    assert_eq!(request_disruption(&mut stage, "west", "b", Reason::Empty), Err(own));
    // A silent cluster, or one with a restarted engine, counts with its last report.
    let mut stage = two_clusters(limits());
    report_nodes(&mut stage, "west", 10, 1, &["b"]);
    stage.fleet.on_engine_start(&"west".into(), stage.now);
    stage.advance(7200);
    assert!(request_disruption(&mut stage, "east", "a", Reason::Empty).is_err());
}
