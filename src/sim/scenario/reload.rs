//! Configuration changes in a scenario.

use std::ops::Range;

use hcl_edit::Span;
use hcl_edit::structure::{Block, BlockLabel, Body};
use jiff::Timestamp;

use crate::sim::scenario::decode::{ScenarioDecoder, time_of_day};

/// Byte range in the source.
type Part = Range<usize>;

/// Returns the source with these ranges replaced by spaces, so that all line numbers are kept. The
/// ranges are whole blocks or groups of blocks, so they never split a character.
pub fn blank_out(source: &str, parts: &[Part]) -> String {
    let mut bytes = source.as_bytes().to_vec();
    for part in parts {
        let part = bytes.get_mut(part.clone()).into_iter().flatten();
        part.filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the configurations in order. Blocks of each configuration replace earlier blocks with
/// the same name and labels.
pub fn read_reloads<'a>(
    body: &'a Body,
    config: Vec<&'a Block>,
    source: &str,
    start: Timestamp,
    reader: &mut ScenarioDecoder<'_>,
) -> Vec<(Timestamp, String)> {
    let mut changes: Vec<(Timestamp, &'a Block)> = Vec::new();
    for block in body.get_blocks("reload") {
        let Some(label) = reader.only_label(block, "a time of day such as \"11:00\"") else {
            continue;
        };
        match time_of_day(label, start) {
            Some(at) => changes.push((at, block)),
            None => {
                let text = format!("{label:?} is not a time of day such as \"11:00\"");
                reader.add_mistake_in(block, &text);
            }
        }
        for item in block.body.attributes() {
            reader.add_mistake_in(item, "a reload has whole blocks of the configuration");
        }
    }
    changes.sort_by_key(|(at, _)| *at);
    let mut now = config;
    let mut reloads = Vec::new();
    for (at, block) in changes {
        let replacements: Vec<&Block> = block.body.blocks().collect();
        now.retain(|block| !replacements.iter().any(|other| has_same_header(block, other)));
        now.extend(replacements);
        let mut kept: Vec<Part> = now.iter().filter_map(|block| block.span()).collect();
        kept.sort_by_key(|part| part.start);
        let ends = std::iter::once(0).chain(kept.iter().map(|part| part.end));
        let starts = kept.iter().map(|part| part.start);
        let gaps = ends.zip(starts.chain([source.len()]));
        let gaps: Vec<Part> = gaps.map(|(from, to)| from..to).collect();
        reloads.push((at, blank_out(source, &gaps)));
    }
    reloads
}

/// Returns true if blocks have the same name and labels.
fn has_same_header(one: &Block, other: &Block) -> bool {
    let labels = one.labels.iter().map(BlockLabel::as_str);
    one.ident.as_str() == other.ident.as_str()
        && labels.eq(other.labels.iter().map(BlockLabel::as_str))
}
