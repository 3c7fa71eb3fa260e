//! Parses the JSON syntax of HCL into a tree. The schema decides if a property is a block or an
//! argument; strings are templates.

use hcl::{Number, Value};

use crate::config::schema::BlockType;
use crate::config::source::Span;
use crate::config::syntax::native::{TemplateSite, parse_template};
use crate::config::syntax::{Attr, Block, Body, Expr, ExprKind, data_of};

/// A JSON syntax error with its span.
#[derive(Debug)]
pub(crate) struct JsonError {
    pub(crate) span: Span,
    pub(crate) detail: String,
    pub(crate) help: Option<String>,
}

/// Comment property of the JSON syntax of HCL.
const COMMENT: &str = "//";

/// Parses a file. Invalid parts are omitted and returned as errors.
pub(crate) fn parse(text: &str, file: usize, schema: &BlockType) -> (Body, Vec<JsonError>) {
    // serde_json validates the file and limits the nesting; the scanner below only adds spans.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        let start = byte_offset(text, error.line(), error.column());
        let detail = error.to_string();
        let detail = detail.split(" at line ").next().unwrap_or(&detail).to_owned();
        let error = JsonError {
            span: Span::new(file, start, start + 1),
            help: (detail == "trailing comma").then(|| "remove the comma before this".to_owned()),
            detail: format!("This is not JSON: {detail}."),
        };
        return (Body::default(), vec![error]);
    }
    let mut scanner = JsonScanner { text, file, at: 0 };
    let Some(node) = scanner.scan_node() else {
        let error = not_an_object(Span::new(file, 0, 1));
        return (Body::default(), vec![error]);
    };
    let mut refusals = Vec::new();
    let body = JsonBuilder { refusals: &mut refusals }.build_body(&node, schema);
    (body, refusals)
}

fn not_an_object(span: Span) -> JsonError {
    JsonError { span, detail: "A JSON object is expected here.".to_owned(), help: None }
}

/// Byte of a line and column as `serde_json` counts them: lines from one, columns in bytes.
fn byte_offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

#[derive(Debug)]
struct JsonNode {
    span: Span,
    kind: NodeKind,
}

#[derive(Debug)]
enum NodeKind {
    Plain(Value),
    /// A string. The flag is true if the string has no escapes.
    Text(String, bool),
    Array(Vec<JsonNode>),
    Object(Vec<(String, Span, JsonNode)>),
}

/// Scans a string that is valid JSON.
struct JsonScanner<'a> {
    text: &'a str,
    file: usize,
    at: usize,
}

impl JsonScanner<'_> {
    fn peek_byte(&mut self) -> Option<u8> {
        let rest = self.text.get(self.at..)?;
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        self.text.as_bytes().get(self.at).copied()
    }

    fn scan_node(&mut self) -> Option<JsonNode> {
        let first = self.peek_byte()?;
        let start = self.at;
        let kind = match first {
            b'{' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.peek_byte()? != b'}' {
                    if self.peek_byte()? == b',' {
                        self.at += 1;
                        continue;
                    }
                    let (key, span, _) = self.scan_string()?;
                    if self.peek_byte()? == b':' {
                        self.at += 1;
                    }
                    items.push((key, span, self.scan_node()?));
                }
                self.at += 1;
                NodeKind::Object(items)
            }
            b'[' => {
                let mut items = Vec::new();
                self.at += 1;
                while self.peek_byte()? != b']' {
                    if self.peek_byte()? == b',' {
                        self.at += 1;
                        continue;
                    }
                    items.push(self.scan_node()?);
                }
                self.at += 1;
                NodeKind::Array(items)
            }
            b'"' => {
                let (text, _, verbatim) = self.scan_string()?;
                NodeKind::Text(text, verbatim)
            }
            _ => NodeKind::Plain(self.scan_literal()?),
        };
        let span = Span::new(self.file, start, self.at);
        Some(JsonNode { span, kind })
    }

    fn scan_string(&mut self) -> Option<(String, Span, bool)> {
        let start = self.at;
        let mut escaped = false;
        let mut verbatim = true;
        let inside = self.text.get(start + 1..)?.bytes().position(|byte| {
            let end = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            verbatim &= byte != b'\\';
            end
        })?;
        self.at = start + inside + 2;
        let text = serde_json::from_str(&self.text[start..self.at]).ok()?;
        Some((text, Span::new(self.file, start, self.at), verbatim))
    }

    fn scan_literal(&mut self) -> Option<Value> {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}'))
            .unwrap_or(rest.len());
        self.at += end;
        Some(match &rest[..end] {
            "null" => Value::Null,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            number => {
                let number: serde_json::Number = serde_json::from_str(number).ok()?;
                let integer = number.as_u64().map(Number::from);
                let integer = integer.or_else(|| number.as_i64().map(Number::from));
                Value::Number(integer.or_else(|| Number::from_f64(number.as_f64()?))?)
            }
        })
    }
}

/// A block whose type and label are at this span.
fn block_at(kind: &str, span: Span, label: Option<&str>, body: Body) -> Block {
    Block {
        kind: kind.to_owned(),
        kind_span: span,
        labels: label.map(|label| (label.to_owned(), span)).into_iter().collect(),
        body,
    }
}

struct JsonBuilder<'a> {
    refusals: &'a mut Vec<JsonError>,
}

impl JsonBuilder<'_> {
    fn build_body(&mut self, node: &JsonNode, schema: &BlockType) -> Body {
        let mut body = Body::default();
        match &node.kind {
            NodeKind::Object(items) => {
                for (name, span, value) in items.iter().filter(|(name, ..)| name != COMMENT) {
                    self.add_entry(&mut body, name, *span, value, schema);
                }
            }
            // Several objects in a list are one body, as in Terraform.
            NodeKind::Array(items) => {
                for item in items {
                    let inner = self.build_body(item, schema);
                    body.attrs.extend(inner.attrs);
                    body.blocks.extend(inner.blocks);
                }
            }
            _ => self.refusals.push(not_an_object(node.span)),
        }
        body
    }

    fn add_entry(
        &mut self,
        body: &mut Body,
        name: &str,
        span: Span,
        value: &JsonNode,
        schema: &BlockType,
    ) {
        if name == "data" && schema.name == "file" {
            self.visit_each(value, &mut |builder, node| {
                let NodeKind::Object(types) = &node.kind else {
                    builder.refusals.push(not_an_object(node.span));
                    return;
                };
                for (kind, span, node) in types.iter().filter(|item| item.0 != COMMENT) {
                    builder.add_entry(body, &data_of(kind), *span, node, schema);
                }
            });
            return;
        }
        let Some(block) = schema.block(name) else {
            // The top level contains only blocks.
            if schema.arguments.is_empty() && !schema.open {
                body.blocks.push(block_at(name, span, None, Body::default()));
                return;
            }
            let expr = self.build_expr(value);
            body.attrs.push(Attr { name: name.to_owned(), name_span: span, expr });
            return;
        };
        if block.label.is_none() {
            self.visit_each(value, &mut |builder, node| {
                let inner = builder.build_body(node, block);
                body.blocks.push(block_at(name, span, None, inner));
            });
            return;
        }
        self.visit_each(value, &mut |builder, node| {
            let NodeKind::Object(labelled) = &node.kind else {
                builder.refusals.push(JsonError {
                    help: Some(format!("write {{ \"{name}\": {{ \"NAME\": {{ … }} }} }}")),
                    ..not_an_object(node.span)
                });
                return;
            };
            for (label, label_span, node) in labelled.iter().filter(|item| item.0 != COMMENT) {
                builder.visit_each(node, &mut |builder, node| {
                    let inner = builder.build_body(node, block);
                    body.blocks.push(block_at(name, *label_span, Some(label), inner));
                });
            }
        });
    }

    /// Calls `visit` with the node or, if it is a list, with each of its items.
    fn visit_each(&mut self, node: &JsonNode, visit: &mut dyn FnMut(&mut Self, &JsonNode)) {
        match &node.kind {
            NodeKind::Array(items) => {
                for item in items {
                    visit(self, item);
                }
            }
            _ => visit(self, node),
        }
    }

    fn build_expr(&mut self, node: &JsonNode) -> Expr {
        let kind = match &node.kind {
            NodeKind::Plain(value) => ExprKind::Literal(value.clone()),
            NodeKind::Text(text, verbatim) => return self.text_expr(text, node.span, *verbatim),
            NodeKind::Array(items) => {
                ExprKind::List(items.iter().map(|item| self.build_expr(item)).collect())
            }
            NodeKind::Object(items) => {
                let mut pairs = Vec::with_capacity(items.len());
                for (key, span, value) in items.iter().filter(|(key, ..)| key != COMMENT) {
                    pairs.push((self.text_expr(key, *span, false), self.build_expr(value)));
                }
                ExprKind::Object(pairs)
            }
        };
        Expr::new(node.span, kind)
    }

    fn text_expr(&mut self, text: &str, span: Span, verbatim: bool) -> Expr {
        let plain = Expr::new(span, ExprKind::Literal(Value::String(text.to_owned())));
        if !text.contains("${") && !text.contains("%{") {
            return plain;
        }
        let place = if verbatim {
            TemplateSite::From(Span::new(span.file, span.start + 1, span.end))
        } else {
            TemplateSite::All(span)
        };
        parse_template(text, place, span).unwrap_or_else(|error| {
            self.refusals.push(JsonError {
                span,
                detail: format!("The template in this string is malformed: {}.", error.message()),
                help: Some("write $${ for a literal ${".to_owned()),
            });
            plain
        })
    }
}
