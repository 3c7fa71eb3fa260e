//! Evaluates local values in dependency order.

use std::collections::BTreeMap;

use crate::config::diagnostic::ProblemCode;
use crate::config::eval::{EvalScope, Evaluator};
use crate::config::report::{Reporter, error_at};
use crate::config::syntax::{Attr, Block, Expr, ExprKind, StepKind};

/// The name of the block in messages.
const TITLE: &str = "locals";

/// Evaluates all local values into the scope.
pub(super) fn resolve_locals(
    reporter: &Reporter,
    evaluator: &Evaluator<'_>,
    blocks: &[&Block],
    scope: &mut EvalScope,
) {
    let mut attrs: BTreeMap<&str, &Attr> = BTreeMap::new();
    for attr in blocks.iter().flat_map(|block| &block.body.attrs) {
        if let Some(before) = attrs.insert(&attr.name, attr)
            && before.name_span != attr.name_span
        {
            let detail = format!("The local value {:?} is defined twice.", attr.name);
            let finding = error_at(ProblemCode::DuplicateName, attr.name_span, detail)
                .duplicate_of(before.name_span)
                .within(TITLE);
            reporter.add(finding);
        }
    }
    // Every name is in scope from the start, so that a name without a value yet is not reported as
    // unknown.
    let names = attrs.keys().map(|name| ((*name).to_owned(), None));
    scope.roots.insert("local", names.collect());
    for name in dependency_order(reporter, &attrs) {
        let evaluated = evaluator.evaluate(&attrs[name].expr, scope, None);
        let known = evaluated.map_err(|fault| reporter.add_fault(*fault, TITLE));
        if let Some(locals) = scope.roots.get_mut("local") {
            locals.insert(name.to_owned(), known.ok());
        }
    }
}

/// The local values that an expression refers to.
pub(super) fn named_locals(expr: &Expr) -> Vec<&str> {
    path_names(expr)
        .into_iter()
        .filter(|(root, _)| *root == "local")
        .map(|(_, name)| name)
        .collect()
}

/// The first two names of every path in an expression (`var`, `environment`).
pub(super) fn path_names(expr: &Expr) -> Vec<(&str, &str)> {
    let mut names = Vec::new();
    expr.walk(&mut |inner| {
        let ExprKind::Traversal(base, steps) = &inner.kind else {
            return;
        };
        let (ExprKind::Variable(root), Some(first)) = (&base.kind, steps.first()) else {
            return;
        };
        match &first.kind {
            StepKind::Name(name) => names.push((root.as_str(), name.as_str())),
            StepKind::Index(index) => {
                names.extend(index.literal_text().map(|name| (root.as_str(), name)));
            }
            StepKind::Splat | StepKind::NameSplat => {}
        }
    });
    names
}

/// The progress of a local value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalState {
    Open,
    Done,
}

/// The names in dependency order. Cycles are reported and omitted. An explicit stack keeps a long
/// chain from overflowing the call stack.
fn dependency_order<'a>(reporter: &Reporter, attrs: &BTreeMap<&'a str, &'a Attr>) -> Vec<&'a str> {
    let mut visits: BTreeMap<&str, LocalState> = BTreeMap::new();
    let mut sorted = Vec::new();
    for start in attrs.keys() {
        let mut path: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut enter = Some(*start).filter(|start| !visits.contains_key(start));
        loop {
            if let Some(name) = enter.take() {
                visits.insert(name, LocalState::Open);
                let needs = attrs.get(name).map(|attr| named_locals(&attr.expr));
                path.push((name, needs.unwrap_or_default()));
            }
            let Some((name, needs)) = path.last_mut() else {
                break;
            };
            match needs.pop() {
                None => {
                    visits.insert(name, LocalState::Done);
                    sorted.push(*name);
                    path.pop();
                }
                Some(need) => match (visits.get(need), attrs.contains_key(need)) {
                    (None, true) => enter = Some(need),
                    (Some(LocalState::Open), _) => {
                        let chain = path.iter().map(|(name, _)| *name);
                        let chain = chain.skip_while(|name| *name != need).collect::<Vec<_>>();
                        report_cycle(reporter, attrs, &chain);
                    }
                    _ => {}
                },
            }
        }
    }
    // Each sorted name is a key of `attrs`, from which the result borrows it.
    sorted.iter().filter_map(|name| attrs.get_key_value(name)).map(|(name, _)| *name).collect()
}

fn report_cycle(reporter: &Reporter, attrs: &BTreeMap<&str, &Attr>, chain: &[&str]) {
    // Number of links of the cycle that are shown with their range.
    const PLACES_MAX: usize = 5;
    // The same cycle is found from each of its members, so it always starts at the first by name.
    let first = chain.iter().enumerate().min_by_key(|(_, name)| **name);
    let mut chain = chain.to_vec();
    chain.rotate_left(first.map_or(0, |(index, _)| index));
    let attrs: Vec<&Attr> = chain.iter().filter_map(|name| attrs.get(name).copied()).collect();
    let Some((start, rest)) = attrs.split_first() else {
        return;
    };
    let mut links: Vec<String> = chain.iter().map(|name| format!("local.{name}")).collect();
    links.push(format!("local.{}", start.name));
    let detail = format!("These values depend on each other: {}.", links.join(" → "));
    let mut finding = error_at(ProblemCode::Cycle, start.name_span, detail)
        .label(format!("depends on {}", links.get(1).map_or("itself", String::as_str)))
        .within(TITLE);
    for (index, attr) in rest.iter().enumerate().take(PLACES_MAX - 1) {
        let needs = links.get(index + 2).map_or("", String::as_str);
        finding = finding.also(attr.name_span, format!("depends on {needs}"));
    }
    reporter.add(finding);
}
