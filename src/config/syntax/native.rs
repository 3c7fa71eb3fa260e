//! Parses the native syntax of HCL into a tree.

use std::ops::Range;

use hcl::Value;
use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, ForExpr, FuncCall, ObjectKey, Traversal, TraversalOperator};
use hcl_edit::structure::{self, BlockLabel, Structure};
use hcl_edit::template::{Directive, Element, Template};

use crate::config::source::Span;
use crate::config::syntax::{
    Attr, Block, Body, Call, Expr, ExprKind, For, ForPart, Step, StepKind, TemplatePart,
};

/// The position of a string that is parsed separately.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TemplateSite {
    /// Its bytes are the bytes of the file from this position on.
    From(Span),
    /// Its bytes cannot be mapped: everything in it has this span.
    All(Span),
}

impl TemplateSite {
    fn span(self, range: Option<Range<usize>>, fallback: Span) -> Span {
        match (self, range) {
            (Self::From(base), Some(range)) => {
                Span::new(base.file, base.start + range.start, base.start + range.end)
            }
            (Self::From(_), None) => fallback,
            (Self::All(span), _) => span,
        }
    }
}

/// The tree of a file.
pub(crate) fn parse(text: &str, file: usize) -> Result<Body, hcl_edit::parser::Error> {
    let body = hcl_edit::parser::parse_body(text)?;
    let whole = Span::new(file, 0, text.len());
    let place = TemplateSite::From(Span::new(file, 0, 0));
    Ok(lower_body(&body, place, whole))
}

/// The tree of an expression.
pub(crate) fn parse_expr(text: &str, place: TemplateSite) -> Result<Expr, hcl_edit::parser::Error> {
    let expr = hcl_edit::parser::parse_expr(text)?;
    Ok(lower_expr(&expr, place, place.span(None, Span::default())))
}

/// The tree of a template.
pub(crate) fn parse_template(
    text: &str,
    place: TemplateSite,
    span: Span,
) -> Result<Expr, hcl_edit::parser::Error> {
    let template = hcl_edit::parser::parse_template(text)?;
    Ok(lower_template_expr(&template, place, span))
}

fn lower_body(body: &structure::Body, place: TemplateSite, around: Span) -> Body {
    let mut out = Body::default();
    for part in body {
        match part {
            Structure::Attribute(attr) => {
                let name_span = place.span(attr.key.span(), around);
                out.attrs.push(Attr {
                    name: attr.key.as_str().to_owned(),
                    name_span,
                    expr: lower_expr(&attr.value, place, name_span),
                });
            }
            Structure::Block(block) => {
                let kind_span = place.span(block.ident.span(), around);
                let labels = block.labels.iter().map(|label| {
                    let text = match label {
                        BlockLabel::Ident(ident) => ident.as_str().to_owned(),
                        BlockLabel::String(text) => text.value().clone(),
                    };
                    (text, place.span(label.span(), kind_span))
                });
                out.blocks.push(Block {
                    kind: block.ident.as_str().to_owned(),
                    kind_span,
                    labels: labels.collect(),
                    body: lower_body(&block.body, place, kind_span),
                });
            }
        }
    }
    out
}

/// `around` is the span to use if the expression has none.
fn lower_expr(expr: &Expression, place: TemplateSite, around: Span) -> Expr {
    let span = place.span(expr.span(), around);
    let inner = |expr: &Expression| lower_expr(expr, place, span);
    let kind = match expr {
        Expression::Null(_) => ExprKind::Literal(Value::Null),
        Expression::Bool(value) => ExprKind::Literal(Value::Bool(*value.value())),
        Expression::Number(value) => ExprKind::Literal(Value::Number(*value.value())),
        Expression::String(value) => ExprKind::Literal(Value::String(value.value().clone())),
        Expression::Array(items) => ExprKind::List(items.iter().map(inner).collect()),
        Expression::Object(object) => {
            let items = object.iter().map(|(key, value)| {
                let key = match key {
                    ObjectKey::Ident(name) => {
                        let text = ExprKind::Literal(Value::String(name.as_str().to_owned()));
                        Expr::new(place.span(name.span(), span), text)
                    }
                    ObjectKey::Expression(key) => inner(key),
                };
                (key, inner(value.expr()))
            });
            ExprKind::Object(items.collect())
        }
        Expression::StringTemplate(template) => {
            return lower_template_expr(template, place, span);
        }
        Expression::HeredocTemplate(heredoc) => {
            return lower_template_expr(&heredoc.template, place, span);
        }
        Expression::Parenthesis(parenthesis) => {
            let expr = inner(parenthesis.inner());
            return Expr { span, ..expr };
        }
        Expression::Variable(name) => ExprKind::Variable(name.as_str().to_owned()),
        Expression::Conditional(three) => ExprKind::Conditional(Box::new((
            inner(&three.cond_expr),
            inner(&three.true_expr),
            inner(&three.false_expr),
        ))),
        Expression::FuncCall(call) => lower_call(call, place, span),
        Expression::Traversal(traversal) => lower_traversal(traversal, place, span),
        Expression::UnaryOp(op) => {
            return Expr::operator(span, *op.operator.value(), inner(&op.expr));
        }
        Expression::BinaryOp(op) => ExprKind::Binary(Box::new((
            inner(&op.lhs_expr),
            *op.operator.value(),
            inner(&op.rhs_expr),
        ))),
        Expression::ForExpr(for_expr) => lower_for(for_expr, place, span),
    };
    Expr::new(span, kind)
}

fn lower_call(call: &FuncCall, place: TemplateSite, span: Span) -> ExprKind {
    let spaces = call.name.namespace.iter().map(|part| format!("{}::", part.as_str()));
    let name = spaces.collect::<String>() + call.name.name.as_str();
    let args = call.args.iter().map(|arg| lower_expr(arg, place, span));
    ExprKind::Call(Box::new(Call {
        name,
        name_span: place.span(call.name.name.span(), span),
        args: args.collect(),
        expand: call.args.expand_final(),
    }))
}

fn lower_traversal(traversal: &Traversal, place: TemplateSite, span: Span) -> ExprKind {
    let base = lower_expr(&traversal.expr, place, span);
    let steps = traversal.operators.iter().map(|operator| {
        let step_span = place.span(operator.span(), span);
        let kind = match operator.value() {
            TraversalOperator::AttrSplat(_) => StepKind::NameSplat,
            TraversalOperator::FullSplat(_) => StepKind::Splat,
            TraversalOperator::GetAttr(name) => StepKind::Name(name.as_str().to_owned()),
            TraversalOperator::Index(index) => StepKind::Index(lower_expr(index, place, step_span)),
            TraversalOperator::LegacyIndex(index) => {
                let index = ExprKind::Literal(Value::from(*index.value()));
                StepKind::Index(Expr::new(step_span, index))
            }
        };
        Step { span: step_span, kind }
    });
    ExprKind::Traversal(Box::new(base), steps.collect())
}

fn lower_for(for_expr: &ForExpr, place: TemplateSite, span: Span) -> ExprKind {
    let inner = |expr: &Expression| lower_expr(expr, place, span);
    ExprKind::For(Box::new(For {
        key_name: for_expr.intro.key_var.as_ref().map(|name| name.as_str().to_owned()),
        value_name: for_expr.intro.value_var.as_str().to_owned(),
        collection: inner(&for_expr.intro.collection_expr),
        key: for_expr.key_expr.as_ref().map(inner),
        value: inner(&for_expr.value_expr),
        condition: for_expr.cond.as_ref().map(|cond| inner(&cond.expr)),
        grouping: for_expr.grouping,
    }))
}

fn lower_template_expr(template: &Template, place: TemplateSite, span: Span) -> Expr {
    // A template with only one interpolation has the value of its expression, of any type.
    if let (1, Some(Element::Interpolation(only))) = (template.len(), template.get(0)) {
        let expr = lower_expr(&only.expr, place, span);
        return Expr { span, ..expr };
    }
    let mut parts = lower_parts(template, place, span, Edges::default());
    match parts.as_mut_slice() {
        [] => Expr::new(span, ExprKind::Literal(Value::String(String::new()))),
        [TemplatePart::Text(text)] => {
            let text = std::mem::take(text);
            Expr::new(span, ExprKind::Literal(Value::String(text)))
        }
        _ => Expr::new(span, ExprKind::Template(parts)),
    }
}

/// Strip markers at the ends of a template.
#[derive(Clone, Copy, Debug, Default)]
struct Edges {
    start: bool,
    end: bool,
}

fn lower_parts(
    template: &Template,
    place: TemplateSite,
    span: Span,
    edges: Edges,
) -> Vec<TemplatePart> {
    let elements: Vec<&Element> = template.iter().collect();
    let mut parts = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        parts.push(match element {
            Element::Literal(text) => {
                let before = index.checked_sub(1).map(|index| elements[index]);
                let after = elements.get(index + 1);
                let mut text = text.value().as_str();
                if before.map_or(edges.start, |element| stripped_edges(element).end) {
                    text = trim_start(text);
                }
                if after.map_or(edges.end, |element| stripped_edges(element).start) {
                    text = trim_end(text);
                }
                TemplatePart::Text(text.to_owned())
            }
            Element::Interpolation(value) => {
                TemplatePart::Value(lower_expr(&value.expr, place, place.span(value.span(), span)))
            }
            Element::Directive(directive) => lower_directive(directive, place, span),
        });
    }
    parts
}

fn lower_directive(directive: &Directive, place: TemplateSite, span: Span) -> TemplatePart {
    match directive {
        Directive::If(branch) => {
            let last = branch.endif_expr.strip.strip_start();
            let middle = branch.else_expr.as_ref();
            let edges = Edges {
                start: branch.if_expr.strip.strip_end(),
                end: middle.map_or(last, |middle| middle.strip.strip_start()),
            };
            let yes = lower_parts(&branch.if_expr.template, place, span, edges);
            let no = middle.map(|middle| {
                let edges = Edges { start: middle.strip.strip_end(), end: last };
                lower_parts(&middle.template, place, span, edges)
            });
            let condition = lower_expr(&branch.if_expr.cond_expr, place, span);
            TemplatePart::If(Box::new((condition, yes, no.unwrap_or_default())))
        }
        Directive::For(for_directive) => {
            let edges = Edges {
                start: for_directive.for_expr.strip.strip_end(),
                end: for_directive.endfor_expr.strip.strip_start(),
            };
            TemplatePart::For(Box::new(ForPart {
                key_name: for_directive
                    .for_expr
                    .key_var
                    .as_ref()
                    .map(|name| name.as_str().to_owned()),
                value_name: for_directive.for_expr.value_var.as_str().to_owned(),
                collection: lower_expr(&for_directive.for_expr.collection_expr, place, span),
                parts: lower_parts(&for_directive.for_expr.template, place, span, edges),
            }))
        }
    }
}

/// The sides on which an element strips white space from its neighbours.
fn stripped_edges(element: &Element) -> Edges {
    let (first, last) = match element {
        Element::Literal(_) => return Edges::default(),
        Element::Interpolation(value) => (value.strip, value.strip),
        Element::Directive(directive) => match directive.as_ref() {
            Directive::If(branch) => (branch.if_expr.strip, branch.endif_expr.strip),
            Directive::For(inner) => (inner.for_expr.strip, inner.endfor_expr.strip),
        },
    };
    Edges { start: first.strip_start(), end: last.strip_end() }
}

/// Removes white space up to and including the first line break.
fn trim_start(text: &str) -> &str {
    let text = text.trim_start_matches(is_blank);
    text.strip_prefix("\r\n").or_else(|| text.strip_prefix('\n')).unwrap_or(text)
}

fn trim_end(text: &str) -> &str {
    let text = text.trim_end_matches(is_blank);
    text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n')).unwrap_or(text)
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() && c != '\r' && c != '\n'
}
