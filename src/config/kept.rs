//! What a configuration may say and this version only keeps: nothing acts upon it yet.
//! It must not know why, nor what such a setting amounts to.

use crate::config::convert::Parsed;
use crate::config::problem::ProblemCode;
use crate::config::read::{Read, Section};
use crate::config::report::{Finding, Reporter};
use crate::config::schema::{Argument, BlockType};
use crate::config::source::Span;

/// A setting that is kept and not acted upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Names of the blocks from the outside in, then the argument's if it is one, with dots.
    pub path: &'static str,
    /// What is so although the setting is there, as a sentence.
    pub instead: &'static str,
    /// What to do until then, as advice.
    pub advice: &'static str,
}

const fn kept(path: &'static str, instead: &'static str, advice: &'static str) -> Kept {
    Kept {
        path,
        instead,
        advice,
    }
}

/// All of them. Whoever makes one count takes its entry out, and its case `not-acted-upon-*`.
pub const KEPT: &[Kept] = &[
    kept(
        "buffer",
        "No room is kept free for it.",
        "remove it; pods of low priority that do nothing keep room until then",
    ),
    kept(
        "pool.replicas",
        "No node is made for a static pool, neither for its number nor for pods that wait.",
        "remove it to have pods decide how many nodes there are",
    ),
];

/// Notes for the end what a block and all within it say to no effect. What is as if it were
/// missing says nothing.
pub(super) fn note(reporter: &Reporter, section: &Section, schema: &'static BlockType) {
    for kept in KEPT {
        let mut names = kept.path.split('.');
        if names.next() != Some(schema.name) {
            continue;
        }
        let (mut block, mut sections) = (schema, vec![section]);
        let mut argument = None;
        for name in names {
            match block.block(name) {
                Some(inner) => {
                    let within = sections.into_iter().flat_map(|it| it.blocks(name));
                    (sections, block) = (within.collect(), inner);
                }
                None => argument = block.argument(name),
            }
        }
        for section in sections {
            match argument {
                None => later(reporter, kept, block.name, section.header, section),
                Some(argument) => {
                    let read = section.get(argument.name);
                    if let Some(read) = read.filter(|read| !is_default(read, argument)) {
                        later(reporter, kept, argument.name, read.name_span, section);
                    }
                }
            }
        }
    }
}

fn is_default(read: &Read, argument: &Argument) -> bool {
    match &read.value {
        Parsed::Quantities(items) => items.is_empty(),
        Parsed::Text(text) => argument.default == format!("{text:?}"),
        Parsed::Flag(flag) => argument.default == flag.to_string(),
        _ => false,
    }
}

fn later(reporter: &Reporter, kept: &Kept, name: &str, span: Span, section: &Section) {
    let detail = format!(
        "This version of Outrigger keeps {name:?}, but does not act on it yet. {}",
        kept.instead
    );
    let finding = Finding::warning(ProblemCode::NotActedUpon, span, detail)
        .help(kept.advice)
        .within(&section.title);
    reporter.later(finding);
}
