//! Decodes blocks against the schema and collects all errors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hcl::Value;

use crate::config::config_diff::ConfigValues;
use crate::config::convert::{ConversionError, ParsedArgument, convert_argument};
use crate::config::decoded_block::{DecodedArgument, DecodedBlock};
use crate::config::diagnostic::ProblemCode;
use crate::config::eval::{EvalError, EvalScope, Evaluator, Frame, NamedValue};
use crate::config::report::{Reporter, SpannedDiagnostic, error_at};
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};
use crate::config::source::Span;
use crate::config::syntax::{Attr, Block, Body, Expr, ExprKind as SyntaxKind};
use crate::config::value::{article, did_you_mean, listed_names, nearest_name};

/// Arguments whose values are never shown.
const HIDDEN: [&str; 1] = ["password"];

/// Decodes blocks in a scope of named values.
pub(super) struct Decoder<'a> {
    pub(super) reporter: &'a Rc<Reporter>,
    pub(super) evaluator: &'a Evaluator<'a>,
    pub(super) scope: &'a EvalScope,
    /// All top-level blocks.
    pub(super) blocks: &'a [Block],
    /// The arguments decoded so far, in a form that may be shown.
    pub(super) written: &'a RefCell<ConfigValues>,
}

impl<'a> Decoder<'a> {
    /// A copy of the decoder with a different scope.
    pub(super) fn with_scope<'b>(&self, scope: &'b EvalScope) -> Decoder<'b>
    where
        'a: 'b,
    {
        Decoder { scope, ..*self }
    }

    /// Evaluates an expression in the scope. Reports an error in the block with this title.
    pub(super) fn evaluate(&self, expr: &Expr, title: &str) -> Option<NamedValue> {
        let evaluated = self.evaluator.evaluate(expr, self.scope, None);
        evaluated.map_err(|fault| self.reporter.add_fault(*fault, title)).ok()
    }

    /// Decodes a top-level block and all blocks within it.
    pub(super) fn decode_block(
        &self,
        block: &Block,
        schema: &'static BlockType,
        frame: Option<&Frame<'_>>,
    ) -> DecodedBlock {
        let title = block.title();
        let key = frame.and_then(|frame| frame.value.as_object()?.get("key"));
        let place = match key.and_then(Value::as_str) {
            Some(key) => format!("{title} [{key:?}]"),
            None => title.clone(),
        };
        self.read_within(block, schema, frame, &title, &place)
    }

    /// Decodes a block and all blocks within it. `title` is used in messages, `place` is unique for
    /// each element of `for_each`.
    fn read_within(
        &self,
        block: &Block,
        schema: &'static BlockType,
        frame: Option<&Frame<'_>>,
        title: &str,
        place: &str,
    ) -> DecodedBlock {
        self.written.borrow_mut().add_block(place);
        let mut section = DecodedBlock {
            header: block.header(),
            label: block.labels.first().cloned(),
            arguments: BTreeMap::new(),
            exprs: BTreeMap::new(),
            faulty: Vec::new(),
            blocks: Vec::new(),
            title: title.to_owned(),
            reporter: Rc::clone(self.reporter),
        };
        for attr in &block.body.attrs {
            if let Some(argument) = schema.argument(&attr.name) {
                self.decode_argument(&mut section, argument, attr, frame, place);
            }
        }
        let mut alike: BTreeMap<String, usize> = BTreeMap::new();
        for inner in &block.body.blocks {
            if let Some(schema) = schema.block(&inner.kind) {
                let inner_title = inner.title();
                let title = format!("{title}, {inner_title}");
                let before = alike.entry(inner_title.clone()).or_default();
                *before += 1;
                let place = match *before {
                    1 => format!("{place}, {inner_title}"),
                    nth => format!("{place}, {inner_title} ({nth})"),
                };
                let read = self.read_within(inner, schema, frame, &title, &place);
                section.blocks.push((schema.name, read));
            }
        }
        self.check_present(&section, schema);
        section
    }

    fn decode_argument(
        &self,
        section: &mut DecodedBlock,
        argument: &'static Argument,
        attr: &Attr,
        frame: Option<&Frame<'_>>,
        place: &str,
    ) {
        if argument.kind == ArgumentType::Expression {
            section.exprs.insert(argument.name, attr.expr.clone());
            return;
        }
        let evaluated = match self.evaluator.evaluate(&attr.expr, self.scope, frame) {
            Ok(evaluated) => evaluated,
            Err(fault) => {
                section.faulty.push(argument.name);
                self.reporter.add_fault(*fault, &section.title);
                self.report_parts(&attr.expr, frame, &section.title);
                return;
            }
        };
        // As in Terraform, null means that the argument is not set.
        if evaluated.value.is_null() {
            return;
        }
        if evaluated.sensitive && argument.kind == ArgumentType::Tags {
            section.faulty.push(argument.name);
            let detail = "A tag must not be sensitive: every user who can list instances can read \
                          its tags.";
            let finding = error_at(ProblemCode::RestrictedTag, attr.expr.span, detail);
            finding.report(section);
            return;
        }
        match convert_argument(argument.kind, argument.name, &evaluated.value) {
            Ok(value) => {
                // The evaluator treats a quoted reference, such as every reference in JSON, as a
                // string.
                if let (ArgumentType::Reference(kind), ParsedArgument::Reference(name)) =
                    (argument.kind, &value)
                    && let Err(fault) = self.scope.check_declared(kind, name, attr.expr.span)
                {
                    section.faulty.push(argument.name);
                    let fault = match evaluated.sensitive {
                        true => without_name(kind, &fault),
                        false => fault,
                    };
                    self.reporter.add_fault(*fault, &section.title);
                    return;
                }
                let mut written = self.written.borrow_mut();
                let is_hidden = evaluated.sensitive || HIDDEN.contains(&argument.name);
                written.add_argument(place, argument.name, &evaluated.value, is_hidden);
                let read = DecodedArgument {
                    value,
                    name_span: attr.name_span,
                    expr: attr.expr.clone(),
                    sensitive: evaluated.sensitive,
                };
                section.arguments.insert(argument.name, read);
            }
            Err(faults) => {
                section.faulty.push(argument.name);
                for fault in faults {
                    let hidden = evaluated.sensitive.then_some(argument);
                    invalid_argument(attr, fault, hidden).report(section);
                }
            }
        }
    }

    /// Reports the errors of every part of a list or map, not only the first.
    fn report_parts(&self, expr: &Expr, frame: Option<&Frame<'_>>, title: &str) {
        let parts: Vec<&Expr> = match &expr.kind {
            SyntaxKind::List(items) => items.iter().collect(),
            SyntaxKind::Object(items) => items.iter().map(|(_, item)| item).collect(),
            _ => return,
        };
        for part in parts {
            if let Err(fault) = self.evaluator.evaluate(part, self.scope, frame) {
                self.reporter.add_fault(*fault, title);
            }
        }
    }

    fn check_present(&self, section: &DecodedBlock, schema: &'static BlockType) {
        for argument in schema.arguments.iter().filter(|argument| argument.required) {
            let is_set = section.is_set(argument.name) || section.exprs.contains_key(argument.name);
            if !is_set {
                let (kind, name) = (schema.name, argument.name);
                let a = article(kind);
                let detail = format!("The argument {name:?} is required in {a} {kind} block.");
                let code = ProblemCode::MissingArgument;
                let finding = error_at(code, section.header, detail)
                    .label(format!("{name} is missing"))
                    .help(format!("{name}: {}", argument.about))
                    .within(&section.title);
                self.reporter.add(finding);
            }
        }
    }
}

/// Checks the names and the number of arguments and blocks in a body, recursively.
pub(super) fn check_names(
    reporter: &Reporter,
    body: &Body,
    schema: &'static BlockType,
    title: &str,
) {
    let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
    for attr in &body.attrs {
        if let Some(before) = seen.insert(&attr.name, attr.name_span) {
            let detail = format!("The argument {:?} is set twice.", attr.name);
            let finding = error_at(ProblemCode::DuplicateArgument, attr.name_span, detail)
                .duplicate_of(before)
                .within(title);
            reporter.add(finding);
        }
        if !schema.open && schema.argument(&attr.name).is_none() {
            reporter.add(unknown_argument(attr, schema).within(title));
        }
    }
    let mut places: BTreeMap<(&str, &str), Span> = BTreeMap::new();
    for block in &body.blocks {
        let Some(inner) = schema.block(&block.kind) else {
            reporter.add(unknown_block(block, schema).within(title));
            continue;
        };
        let inner_title = match title {
            "" => block.title(),
            title => format!("{title}, {}", block.title()),
        };
        check_labels(reporter, block, inner, title);
        let label = block.labels.first().map_or("", |(label, _)| label.as_str());
        let key = match inner.repeat {
            Occurrence::Once => Some((inner.name, "")),
            Occurrence::PerLabel => Some((inner.name, label)),
            Occurrence::Many => None,
        };
        if let Some(before) = key.and_then(|key| places.insert(key, block.header())) {
            reporter.add(duplicate_block(block, inner, before).within(title));
        }
        check_names(reporter, &block.body, inner, &inner_title);
    }
}

/// The error of a value. The error does not show the value of the argument `hidden`.
fn invalid_argument(
    attr: &Attr,
    fault: ConversionError,
    hidden: Option<&Argument>,
) -> SpannedDiagnostic {
    let span = attr.expr.inner_span(&fault.path);
    let Some(argument) = hidden else {
        return error_at(fault.code, span, fault.detail).maybe_help(fault.help);
    };
    let (name, wants) = (argument.name, argument.kind.expected_value());
    let detail =
        format!("The argument {name:?} must be {wants}. Its value is sensitive and not shown.");
    error_at(fault.code, span, detail)
}

fn duplicate_block(block: &Block, schema: &BlockType, before: Span) -> SpannedDiagnostic {
    let detail = match schema.repeat {
        Occurrence::Once => format!("At most one {} block is allowed here.", block.kind),
        _ => format!("The block {} is defined twice.", block.title()),
    };
    error_at(ProblemCode::DuplicateBlock, block.header(), detail)
        .duplicate_of(before)
        .help("blocks are not merged, even across files; combine them, or rename one")
}

fn check_labels(reporter: &Reporter, block: &Block, schema: &BlockType, title: &str) {
    let wanted = usize::from(schema.label.is_some());
    let faulty = block.labels.iter().find(|(label, _)| label.is_empty());
    let (span, detail) = match (block.labels.get(wanted), faulty) {
        (Some((_, extra)), _) => {
            let count = if wanted == 0 { "no label" } else { "one label" };
            (*extra, format!("Blocks of type {} must have {count}.", block.kind))
        }
        (None, Some((_, empty))) => (*empty, "A label must not be empty.".to_owned()),
        (None, None) if block.labels.len() < wanted => {
            (block.kind_span, format!("Blocks of type {} must have a label.", block.kind))
        }
        _ => return,
    };
    let code = ProblemCode::BlockLabel;
    let mut finding = error_at(code, span, detail).within(title);
    finding = match schema.label {
        Some(label) => finding.help(format!("write {} {label:?} {{ … }}", block.kind)),
        None => finding.help(format!("write {} {{ … }}", block.kind)),
    };
    reporter.add(finding);
}

/// Returns the error of a missing reference without the name, which is sensitive.
fn without_name(kind: &str, fault: &EvalError) -> Box<EvalError> {
    let detail = format!("The {kind} does not exist. Its name is sensitive and not shown.");
    EvalError::new(fault.span, fault.code, detail)
}

fn unknown_argument(attr: &Attr, schema: &'static BlockType) -> SpannedDiagnostic {
    let name = attr.name.as_str();
    if let Some(block) = schema.block(name) {
        let detail = format!("{name:?} is a block, not an argument.");
        let label = block.label.map_or(String::new(), |label| format!(" {label:?}"));
        return error_at(ProblemCode::BlockExpected, attr.name_span, detail)
            .help(format!("write {name}{label} {{ … }}, without the equals sign"));
    }
    let detail = match schema.name {
        "file" => format!("An argument named {name:?} is not expected outside of blocks."),
        kind => {
            let a = article(kind);
            format!("An argument named {name:?} is not expected in {a} {kind} block.")
        }
    };
    let finding =
        error_at(ProblemCode::UnknownArgument, attr.name_span, detail).label("not expected here");
    let renamed = RENAMED_ARGUMENTS.iter().find(|(old, _)| *old == name);
    if let Some((_, new)) = renamed.filter(|(_, new)| schema.argument(new).is_some()) {
        return finding.help(format!("{name:?} has been renamed to {new:?}"));
    }
    if let Some(deeper) = matching_inner_block(schema, &|inner| inner.argument(name).is_some()) {
        return finding.help(format!("{name:?} belongs in the {deeper} block"));
    }
    let names = schema.arguments.iter().map(|argument| argument.name);
    let names: Vec<&str> = names.collect();
    let blocks = schema.blocks.iter().map(|block| block.name);
    let near = did_you_mean(name, names.iter().copied().chain(blocks));
    finding.maybe_help(near.or_else(|| listed_names(&names)))
}

/// Arguments of earlier versions, each with its present name.
const RENAMED_ARGUMENTS: [(&str, &str); 6] = [
    ("alternatives", "max_launch_options"),
    ("max_retired", "max_disrupted_per_reload"),
    ("node_price", "node_overhead_price"),
    ("spot_to_spot_types", "spot_to_spot_min_types"),
    ("unready_max", "max_unready"),
    ("view_max_age", "watch_timeout"),
];

/// Karpenter's names, and the names of this schema.
const KARPENTER: [(&str, &str); 11] = [
    ("nodepool", "pool"),
    ("node_pool", "pool"),
    ("provisioner", "pool"),
    ("nodeclass", "node_class"),
    ("ec2nodeclass", "node_class"),
    ("nodeoverlay", "overlay"),
    ("node_overlay", "overlay"),
    ("capacitybuffer", "buffer"),
    ("requirements", "require"),
    ("startupTaints", "startup_taint"),
    ("budgets", "budget"),
];

/// A block type in quotes, unless it already contains quotes.
fn quoted_kind(kind: &str) -> String {
    match kind.contains('"') {
        true => kind.to_owned(),
        false => format!("{kind:?}"),
    }
}

fn unknown_block(block: &Block, schema: &'static BlockType) -> SpannedDiagnostic {
    let name = block.kind.as_str();
    if schema.argument(name).is_some() {
        let detail = format!("{name:?} is an argument, not a block.");
        return error_at(ProblemCode::ArgumentExpected, block.header(), detail)
            .help(format!("write {name} = {{ … }}, with an equals sign"));
    }
    let quoted = quoted_kind(name);
    let detail = match schema.name {
        "file" => format!("There is no block type {quoted}."),
        kind => {
            let a = article(kind);
            format!("A block named {quoted} is not expected in {a} {kind} block.")
        }
    };
    let finding =
        error_at(ProblemCode::UnknownBlock, block.kind_span, detail).label("not expected here");
    if let Some(deeper) = matching_inner_block(schema, &|inner| inner.block(name).is_some()) {
        return finding.help(format!("{name:?} belongs in a {deeper} block"));
    }
    if let Some((_, equivalent)) =
        KARPENTER.iter().find(|(name_in_karpenter, _)| name.eq_ignore_ascii_case(name_in_karpenter))
        && schema.block(equivalent).is_some()
    {
        return finding.help(format!("did you mean {equivalent:?}?"));
    }
    let names = schema.blocks.iter().map(|block| block.name);
    let names: Vec<&str> = names.collect();
    let near = nearest_name(name, names.iter().copied());
    let near = near.map(|near| format!("did you mean {}?", quoted_kind(near)));
    finding.maybe_help(near.or_else(|| listed_names(&names)))
}

/// The name of the first inner block for which `fits` holds.
fn matching_inner_block(
    schema: &'static BlockType,
    fits: &dyn Fn(&'static BlockType) -> bool,
) -> Option<&'static str> {
    let block = schema.blocks.iter().find(|inner| fits(inner));
    block.map(|inner| inner.name)
}
