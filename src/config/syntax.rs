//! The syntax tree of a configuration: bodies, blocks and expressions, with spans.

// Parser for native HCL syntax.
pub(super) mod native;
// Parser for the JSON syntax of HCL.
pub(super) mod json;

use hcl::Value;
use hcl_edit::expr::{BinaryOperator, UnaryOperator};

use crate::config::source::Span;

/// The content of a block or a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    pub(super) attrs: Vec<Attr>,
    pub(super) blocks: Vec<Block>,
}

/// `name = expression`.
#[derive(Clone, Debug)]
pub(super) struct Attr {
    pub(super) name: String,
    pub(super) name_span: Span,
    pub(super) expr: Expr,
}

/// `kind "label" { … }`.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) kind: String,
    pub(super) kind_span: Span,
    pub(super) labels: Vec<(String, Span)>,
    pub(super) body: Body,
}

/// The block type of a data source: `data "TYPE" "NAME"` is treated as a block with one label.
pub(super) fn data_of(kind: &str) -> String {
    format!("data {kind:?}")
}

impl Block {
    /// Moves the first label of a `data` block into its type.
    pub(super) fn settle_type(&mut self) {
        if self.kind == "data" && !self.labels.is_empty() {
            let (kind, span) = self.labels.remove(0);
            self.kind = data_of(&kind);
            self.kind_span = self.kind_span.up_to(span);
        }
    }

    /// The block header: type and labels.
    pub(super) fn header(&self) -> Span {
        match self.labels.last() {
            Some((_, last)) if last.file == self.kind_span.file => self.kind_span.up_to(*last),
            _ => self.kind_span,
        }
    }

    /// The name in messages: `pool "general"`.
    pub(super) fn title(&self) -> String {
        let mut title = self.kind.clone();
        for (label, _) in &self.labels {
            title.push_str(&format!(" {label:?}"));
        }
        title
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) span: Span,
    pub(super) kind: ExprKind,
}

/// The kind of an expression.
#[derive(Clone, Debug)]
pub(super) enum ExprKind {
    Literal(Value),
    List(Vec<Expr>),
    Object(Vec<(Expr, Expr)>),
    Template(Vec<TemplatePart>),
    Variable(String),
    Traversal(Box<Expr>, Vec<Step>),
    Call(Box<Call>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Box<(Expr, BinaryOperator, Expr)>),
    Conditional(Box<(Expr, Expr, Expr)>),
    For(Box<For>),
}

/// One step into a value.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) span: Span,
    pub(super) kind: StepKind,
}

/// The kind of a step.
#[derive(Clone, Debug)]
pub(super) enum StepKind {
    Name(String),
    Index(Expr),
    /// `.*`: applies the attribute names that follow to every element.
    NameSplat,
    /// `[*]`: applies all steps that follow to every element.
    Splat,
}

/// `name(arguments)`.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) name_span: Span,
    pub(super) args: Vec<Expr>,
    /// True if the last argument ends in `...`.
    pub(super) expand: bool,
}

/// `[for k, v in collection : …]`, or the form in braces if `key` is set.
#[derive(Clone, Debug)]
pub(super) struct For {
    pub(super) key_name: Option<String>,
    pub(super) value_name: String,
    pub(super) collection: Expr,
    pub(super) key: Option<Expr>,
    pub(super) value: Expr,
    pub(super) condition: Option<Expr>,
    /// True if the values of each key are grouped.
    pub(super) grouping: bool,
}

/// A part of a template. Strip markers have been applied.
#[derive(Clone, Debug)]
pub(super) enum TemplatePart {
    Text(String),
    Value(Expr),
    If(Box<(Expr, Vec<TemplatePart>, Vec<TemplatePart>)>),
    For(Box<ForPart>),
}

/// `%{ for k, v in collection }…%{ endfor }`.
#[derive(Clone, Debug)]
pub(super) struct ForPart {
    pub(super) key_name: Option<String>,
    pub(super) value_name: String,
    pub(super) collection: Expr,
    pub(super) parts: Vec<TemplatePart>,
}

impl Expr {
    pub(super) fn new(span: Span, kind: ExprKind) -> Self {
        Self { span, kind }
    }

    pub(super) fn operator(span: Span, operator: UnaryOperator, inner: Self) -> Self {
        let kind = match operator {
            UnaryOperator::Not => ExprKind::Not,
            UnaryOperator::Neg => ExprKind::Negate,
        };
        Self::new(span, kind(Box::new(inner)))
    }

    /// The smallest span that contains the value at this path of a literal list or object.
    pub(super) fn inner_span(&self, path: &[PathStep]) -> Span {
        let Some((first, rest)) = path.split_first() else {
            return self.span;
        };
        match (&self.kind, first) {
            (ExprKind::List(items), PathStep::Index(index)) => {
                items.get(*index).map_or(self.span, |item| item.inner_span(rest))
            }
            (ExprKind::Object(items), PathStep::Key(key) | PathStep::KeyItself(key)) => {
                let item = items.iter().find(|(expr, _)| expr.literal_text() == Some(key));
                match (item, first) {
                    (Some((expr, _)), PathStep::KeyItself(_)) => expr.span,
                    (Some((_, value)), _) => value.inner_span(rest),
                    (None, _) => self.span,
                }
            }
            _ => self.span,
        }
    }

    /// The string, if the expression is a string literal.
    pub(super) fn literal_text(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Literal(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Calls `visit` with every expression within this one, itself first.
    pub(super) fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Self)) {
        visit(self);
        match &self.kind {
            ExprKind::Literal(_) | ExprKind::Variable(_) => {}
            ExprKind::List(items) => items.iter().for_each(|item| item.walk(visit)),
            ExprKind::Object(items) => {
                for (key, value) in items {
                    key.walk(visit);
                    value.walk(visit);
                }
            }
            ExprKind::Template(parts) => walk_parts(parts, visit),
            ExprKind::Traversal(base, steps) => {
                base.walk(visit);
                for step in steps {
                    if let StepKind::Index(index) = &step.kind {
                        index.walk(visit);
                    }
                }
            }
            ExprKind::Call(call) => call.args.iter().for_each(|arg| arg.walk(visit)),
            ExprKind::Not(inner) | ExprKind::Negate(inner) => inner.walk(visit),
            ExprKind::Binary(sides) => {
                sides.0.walk(visit);
                sides.2.walk(visit);
            }
            ExprKind::Conditional(three) => {
                three.0.walk(visit);
                three.1.walk(visit);
                three.2.walk(visit);
            }
            ExprKind::For(for_expr) => {
                for_expr.collection.walk(visit);
                for_expr.value.walk(visit);
                for inner in for_expr.key.iter().chain(&for_expr.condition) {
                    inner.walk(visit);
                }
            }
        }
    }
}

/// A step into the value of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    Index(usize),
    Key(String),
    /// The key, not its value.
    KeyItself(String),
}

fn walk_parts<'a>(parts: &'a [TemplatePart], visit: &mut dyn FnMut(&'a Expr)) {
    for part in parts {
        match part {
            TemplatePart::Text(_) => {}
            TemplatePart::Value(expr) => expr.walk(visit),
            TemplatePart::If(three) => {
                three.0.walk(visit);
                walk_parts(&three.1, visit);
                walk_parts(&three.2, visit);
            }
            TemplatePart::For(for_part) => {
                for_part.collection.walk(visit);
                walk_parts(&for_part.parts, visit);
            }
        }
    }
}
