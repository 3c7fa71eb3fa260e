//! Converts budgets, maintenance windows and cool-downs.

use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::schedule::{Schedules, window_of};
use crate::config::report::{error_at, warning_at};
use crate::model::pool::{Budget, BudgetNodes, ClusterDisruption, CoolDown, Maintenance, Reason};
use crate::model::window::Window;

/// The `disruption` block of a cluster.
pub(super) fn of_cluster(section: &DecodedBlock, schedules: &Schedules) -> ClusterDisruption {
    let Some(section) = section.block("disruption") else {
        return ClusterDisruption::default();
    };
    let cool_down = section.block("cool_down");
    ClusterDisruption {
        budgets: budgets(section, schedules),
        windows: windows(section, schedules),
        cool_down: cool_down.map_or_else(CoolDown::default, |block| CoolDown {
            after_launch: block.duration("after_launch").unwrap_or_default(),
            after_end: block.duration("after_end").unwrap_or_default(),
            after_failure: block.duration("after_failure").unwrap_or_default(),
        }),
    }
}

/// The budgets in a block.
pub(super) fn budgets(section: &DecodedBlock, schedules: &Schedules) -> Vec<Budget> {
    section.blocks("budget").filter_map(|block| lower_budget(block, schedules)).collect()
}

/// The maintenance windows in a block.
pub(super) fn windows(section: &DecodedBlock, schedules: &Schedules) -> Vec<Maintenance> {
    section.blocks("window").filter_map(|block| lower_window(block, schedules)).collect()
}

fn lower_budget(section: &DecodedBlock, schedules: &Schedules) -> Option<Budget> {
    let during = schedule_window(section, schedules);
    let rate = section.rate("rate");
    if !section.is_set("nodes") && !section.is_set("rate") {
        let detail = "A budget must limit the nodes that are disrupted at the same time, or within \
                      a period.";
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .label("nodes and rate are missing")
            .help("write nodes = \"10%\", or rate = \"20/h\"")
            .report(section);
        return None;
    }
    let nodes = section.budget_nodes("nodes");
    let always = !section.is_any_set(&["during", "schedule", "reasons"]);
    if always && matches!(nodes, Some(BudgetNodes::Nodes(0) | BudgetNodes::Percent(0))) {
        let detail = "This budget is always zero: it blocks all voluntary disruption.";
        warning_at(ProblemCode::OutOfRange, section.value_span("nodes"), detail)
            .help("limit it with during or reasons, or pause disruption for a while instead")
            .report(section);
    }
    // If only a rate is set, the number of simultaneous disruptions is not limited.
    let nodes = nodes.or(rate.map(|_| BudgetNodes::Percent(100)))?;
    Some(Budget { nodes, rate, reasons: reasons(section), during })
}

fn lower_window(section: &DecodedBlock, schedules: &Schedules) -> Option<Maintenance> {
    if !section.is_any_set(&["during", "schedule", "duration", "timezone"]) {
        let detail = "A window must have a schedule.";
        error_at(ProblemCode::MissingArgument, section.header, detail)
            .label("during is missing")
            .help("write during = schedule.NAME, or schedule and duration")
            .report(section);
    }
    let during = schedule_window(section, schedules)?;
    Some(Maintenance {
        allows: section.text("action")? == "allow",
        reasons: reasons(section),
        during,
    })
}

fn reasons(section: &DecodedBlock) -> Vec<Reason> {
    let texts = section.texts("reasons").unwrap_or_default().iter();
    texts.filter_map(|text| Reason::parse(text)).collect()
}

/// The schedule of a budget or window: named or inline.
fn schedule_window(section: &DecodedBlock, schedules: &Schedules) -> Option<Window> {
    let in_place = ["schedule", "duration", "timezone"];
    let first = in_place.iter().find_map(|name| section.get(name));
    if let (Some(during), Some(first)) = (section.get("during"), first) {
        let detail = "during and an inline schedule exclude each other.";
        error_at(ProblemCode::Conflict, first.name_span, detail)
            .also(during.name_span, "")
            .report(section);
        return None;
    }
    if let Some(name) = section.reference("during") {
        return schedules.get(name).cloned().flatten();
    }
    let first = first?;
    if !section.is_set("schedule") {
        let detail = "The start is missing: schedule is not set.";
        error_at(ProblemCode::MissingArgument, first.name_span, detail)
            .label("schedule is missing")
            .help("add schedule = \"0 8 * * mon-fri\"")
            .report(section);
        return None;
    }
    window_of(section, "schedule")
}
