//! Validates the imported configuration: drops invalid parts and reports them.

use serde_json::Value;

use super::super::field_tables::{KUBELET, NODE_CLASS};
use super::{CLUSTERS, ConvertedBlock, ImportError, ItemNoun};
use crate::config::diagnostic::{Diagnostic, Severity};
use crate::config::{Inputs, SourceFile, load};
use crate::migrate::dropped::{DroppedField, join_path};
use crate::migrate::hcl::{HclBody, HclItem, HclValue, PrintedHcl};

/// The names of the validated file and of the file with its clusters.
const FILE: &str = "import.hcl";

/// Parts of a node class that can be dropped safely: without them nothing is launched, because a
/// managed cluster rejects a class without a role, images or subnets.
const SOFT: [&str; 6] = ["ami", "context", "instance_profile", "kubelet", "role", "subnet"];

/// Drops invalid parts, block by block, until the configuration is valid.
pub(super) fn drop_invalid_parts(
    built: &mut [ConvertedBlock],
    clusters: &[String],
) -> Result<(), ImportError> {
    // Each round drops at least one part.
    loop {
        let clusters = SourceFile::new(CLUSTERS, stand_in_clusters(clusters, built));
        let (mut body, mut order) = (HclBody::default(), Vec::new());
        for (index, converted) in
            built.iter().enumerate().filter(|(_, converted)| !converted.left_out)
        {
            body.items.push(HclItem::Block(converted.block.clone()));
            order.push(index);
        }
        let printed = PrintedHcl::print_body(&body);
        let files = [SourceFile::new(FILE, printed.text.clone()), clusters];
        let Err(problems) = load(&files, &Inputs::default()) else {
            return Ok(());
        };
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        let mut blamed = Vec::new();
        for problem in errors.clone() {
            let ranges = problem.ranges.iter().filter(|range| range.file == FILE);
            let place = ranges.filter_map(|range| printed.path_at_line(range.start.line)).next();
            blamed.extend(place.map(|place| (place.to_vec(), problem_text(problem))));
        }
        if blamed.is_empty() {
            let first = errors.map(problem_text).next().unwrap_or_default();
            return Err(ImportError::Unsound(first));
        }
        // In reverse order, so that the positions of the others do not change.
        blamed.sort();
        blamed.dedup_by(|one, other| one.0 == other.0);
        for (place, why) in blamed.into_iter().rev() {
            leave_out(&mut built[order[place[0]]], &place[1..], why);
        }
    }
}

fn problem_text(problem: &Diagnostic) -> String {
    problem.detail.trim_end_matches('.').to_owned()
}

/// Drops an optional item of a block, or else the whole block.
fn leave_out(converted: &mut ConvertedBlock, place: &[usize], why: String) {
    if converted.left_out {
        return;
    }
    let Some((path, depth)) = optional_item(converted, place) else {
        converted.comment_out(why);
        return;
    };
    remove_item(&mut converted.block.body, &place[..depth]);
    converted.losses.push(DroppedField::new(converted.of.as_str(), path, why));
}

/// Required items of blocks: without them a block would allow more nodes, or have no meaning.
const HARD: [&str; 5] = ["limits", "node_class", "region", "require", "taint"];

/// Finds the innermost invalid item of a block that is named by its arguments.
fn innermost_item(converted: &ConvertedBlock, place: &[usize]) -> Option<(String, usize)> {
    let (mut body, mut path) = (&converted.block.body, String::new());
    for (depth, index) in place.iter().enumerate() {
        let item = body.items.get(*index)?;
        let (name, inner) = item_name(item)?;
        if depth == 0 && HARD.contains(&name) && converted.block.kind != "cluster" {
            return None;
        }
        path = join_path(&path, name);
        match inner {
            Some(inner) if depth + 1 < place.len() => body = inner,
            _ => return Some((path, depth + 1)),
        }
    }
    None
}

/// Returns the path of an optional item in the Karpenter object, and the length of its position in
/// the tree.
fn optional_item(converted: &ConvertedBlock, place: &[usize]) -> Option<(String, usize)> {
    if converted.words == ItemNoun::Ours {
        return innermost_item(converted, place);
    }
    if converted.block.kind != "node_class" {
        return None;
    }
    let (first, rest) = place.split_first()?;
    let items = &converted.block.body.items;
    let (name, inner) = item_name(items.get(*first)?)?;
    let row = NODE_CLASS.iter().find(|row| row.name == name)?;
    if !SOFT.contains(&name) {
        return None;
    }
    let path = format!("spec.{}", row.field);
    let index = items[..*first]
        .iter()
        .filter(|item| item_name(item).is_some_and(|(other, _)| other == name))
        .count();
    let path = match name {
        "ami" | "subnet" => return Some((format!("{path}[{index}]"), 1)),
        _ => path,
    };
    let Some(item) = rest.first().and_then(|index| inner?.items.get(*index)) else {
        return Some((path, 1));
    };
    let (name, _) = item_name(item)?;
    let row = KUBELET.iter().find(|row| row.name == name);
    let path = match (row, item) {
        (Some(row), _) => format!("{path}.{}", row.field),
        (None, HclItem::Argument(_, HclValue::Value(Value::Object(items)))) => {
            let names: Vec<&str> = items.keys().map(String::as_str).collect();
            format!("{path}: {}", names.join(", "))
        }
        _ => path,
    };
    Some((path, 2))
}

fn item_name(item: &HclItem) -> Option<(&'static str, Option<&HclBody>)> {
    match item {
        HclItem::Argument(name, _) => Some((name, None)),
        HclItem::Block(block) => Some((block.kind, Some(&block.body))),
        HclItem::Comment(_) => None,
    }
}

fn remove_item(body: &mut HclBody, place: &[usize]) {
    let Some((first, rest)) = place.split_first() else {
        return;
    };
    match body.items.get_mut(*first) {
        Some(HclItem::Block(block)) if !rest.is_empty() => {
            remove_item(&mut block.body, rest);
            if block.body.is_empty() {
                body.items.remove(*first);
            }
        }
        Some(_) => drop(body.items.remove(*first)),
        None => {}
    }
}

/// Observed clusters for validation, because a managed cluster requires more of a node class than
/// an import can provide. Clusters in the input are validated themselves.
fn stand_in_clusters(patterns: &[String], built: &[ConvertedBlock]) -> String {
    let mut names: Vec<String> =
        patterns.iter().map(|pattern| pattern.replace('*', "any")).collect();
    if names.is_empty() {
        names.push("any".to_owned());
    }
    let clusters =
        built.iter().filter(|converted| converted.block.kind == "cluster" && !converted.left_out);
    let labels: Vec<&String> =
        clusters.filter_map(|cluster| cluster.block.label.as_ref()).collect();
    if patterns.is_empty() && !labels.is_empty() {
        names.clear();
    }
    names.retain(|name| !labels.contains(&name));
    names.sort();
    names.dedup();
    let clusters = names.iter().map(|name| {
        let name = crate::migrate::hcl::literal::quoted_string(name);
        format!("cluster {name} {{\n  region = \"us-east-1\"\n  eks {{}}\n}}\n")
    });
    clusters.collect()
}
