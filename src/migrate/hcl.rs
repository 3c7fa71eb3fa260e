//! A tree of blocks and arguments that is printed as HCL.

// HCL literals: quotes, escapes, heredocs.
pub(crate) mod literal;

use serde_json::Value;

use crate::migrate::hcl::literal::{
    list_or_map, map_entries, map_key, quoted_string, string_literal,
};

/// The value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HclValue {
    /// A value.
    Value(Value),
    /// A reference to a block of this type and name.
    Reference(&'static str, String),
}

/// An item of a body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HclItem {
    Argument(&'static str, HclValue),
    Block(HclBlock),
    Comment(String),
}

/// A block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HclBlock {
    pub(crate) kind: &'static str,
    pub(crate) label: Option<String>,
    pub(crate) body: HclBody,
}

/// The content of a block or file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HclBody {
    pub(crate) items: Vec<HclItem>,
}

impl HclBody {
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let term = HclValue::Value(value.into());
        self.items.push(HclItem::Argument(name, term));
    }

    /// Sets an argument if it has a value.
    pub(crate) fn set_some(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets an argument unless its value is an empty string, list or map.
    pub(crate) fn set_unless_empty(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        let is_empty = match &value {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            _ => false,
        };
        if !is_empty {
            self.set(name, value);
        }
    }

    /// Sets an argument if its value is not the default.
    pub(crate) fn set_changed<T: PartialEq + Into<Value>>(
        &mut self,
        name: &'static str,
        value: T,
        default: T,
    ) {
        if value != default {
            self.set(name, value);
        }
    }

    pub(crate) fn set_reference(&mut self, name: &'static str, kind: &'static str, to: &str) {
        let term = HclValue::Reference(kind, to.to_owned());
        self.items.push(HclItem::Argument(name, term));
    }

    pub(crate) fn add_comment(&mut self, text: impl Into<String>) {
        self.items.push(HclItem::Comment(text.into()));
    }

    /// Adds a block.
    pub(crate) fn add_block(&mut self, kind: &'static str, label: Option<&str>, body: HclBody) {
        let label = label.map(str::to_owned);
        self.items.push(HclItem::Block(HclBlock { kind, label, body }));
    }

    /// Adds a block unless it is empty.
    pub(crate) fn add_block_unless_empty(&mut self, kind: &'static str, body: HclBody) {
        if !body.is_empty() {
            self.add_block(kind, None, body);
        }
    }

    /// Returns the body of the first block of this type.
    pub(crate) fn block_body(&mut self, kind: &str) -> Option<&mut HclBody> {
        self.items.iter_mut().find_map(|item| match item {
            HclItem::Block(block) if block.kind == kind => Some(&mut block.body),
            _ => None,
        })
    }

    /// Adds items to the first block of this type, and creates the block if needed.
    pub(crate) fn add_within(&mut self, kind: &'static str, more: HclBody) {
        match self.block_body(kind) {
            Some(inner) => inner.items.extend(more.items),
            None => self.add_block_unless_empty(kind, more),
        }
    }

    /// Inserts items before the first block.
    pub(crate) fn insert_before_blocks(&mut self, more: HclBody) {
        let mut items = self.items.iter();
        let place = items.position(|item| matches!(item, HclItem::Block(_)));
        let place = place.unwrap_or(self.items.len());
        self.items.splice(place..place, more.items);
    }

    /// Removes and returns an argument.
    pub(crate) fn take_argument(&mut self, name: &str) -> Option<HclValue> {
        let place = self.items.iter().position(|item| match item {
            HclItem::Argument(argument, _) => *argument == name,
            _ => false,
        })?;
        match self.items.remove(place) {
            HclItem::Argument(_, term) => Some(term),
            _ => None,
        }
    }

    /// Removes and returns an argument with a literal value.
    pub(crate) fn take_value(&mut self, name: &str) -> Option<Value> {
        match self.take_argument(name)? {
            HclValue::Value(value) => Some(value),
            HclValue::Reference(..) => None,
        }
    }

    /// Removes and returns all blocks of a type.
    pub(crate) fn take_blocks(&mut self, kind: &str) -> Vec<HclBlock> {
        let (mut blocks, mut rest) = (Vec::new(), Vec::new());
        for item in std::mem::take(&mut self.items) {
            match item {
                HclItem::Block(block) if block.kind == kind => blocks.push(block),
                other => rest.push(other),
            }
        }
        self.items = rest;
        blocks
    }

    /// Returns whether the body is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

/// The printed HCL, with the lines of each item: first and last line, counted from one, and the
/// position of the item in the tree.
#[derive(Debug, Default)]
pub(crate) struct PrintedHcl {
    pub(crate) text: String,
    places: Vec<(usize, usize, Vec<usize>)>,
    line: usize,
}

/// The maximum width of a list or map on one line.
const COLUMNS: usize = 100;

impl PrintedHcl {
    /// Prints a body.
    pub(crate) fn print_body(body: &HclBody) -> Self {
        let mut printed = Self::default();
        printed.put_body(body, &mut Vec::new());
        printed
    }

    /// Returns the position of the innermost item on a line.
    pub(crate) fn path_at_line(&self, line: usize) -> Option<&[usize]> {
        let found = self.places.iter().filter(|place| (place.0..=place.1).contains(&line));
        found.max_by_key(|(.., path)| path.len()).map(|(.., path)| path.as_slice())
    }

    fn put_lines(&mut self, depth: usize, text: &str) {
        for line in text.split('\n') {
            if !line.is_empty() {
                self.text.push_str(&"  ".repeat(depth));
            }
            self.text.push_str(line);
            self.text.push('\n');
            self.line += 1;
        }
    }

    fn put_body(&mut self, body: &HclBody, path: &mut Vec<usize>) {
        let depth = path.len();
        for (index, item) in body.items.iter().enumerate() {
            path.push(index);
            if depth == 0 && index > 0 {
                self.put_lines(0, "");
            }
            let first = self.line + 1;
            match item {
                HclItem::Argument(name, term) => self.put_argument(depth, name, term),
                HclItem::Comment(text) => {
                    for line in text.lines() {
                        self.put_lines(depth, format!("# {line}").trim_end());
                    }
                }
                HclItem::Block(block) => self.put_block(block, depth, path),
            }
            self.places.push((first, self.line, path.clone()));
            path.pop();
        }
    }

    fn put_block(&mut self, block: &HclBlock, depth: usize, path: &mut Vec<usize>) {
        let label = block.label.as_ref();
        let label = label.map_or_else(String::new, |label| format!(" {}", quoted_string(label)));
        let head = format!("{}{label}", block.kind);
        let short = match block.body.items.as_slice() {
            [] => Some(format!("{head} {{}}")),
            [HclItem::Argument(name, term)] if depth > 0 => {
                let line = format!("{head} {{ {name} = {} }}", one_line(term));
                let fits = depth * 2 + line.chars().count() <= COLUMNS && !line.contains('\n');
                fits.then_some(line)
            }
            _ => None,
        };
        if let Some(short) = short {
            self.put_lines(depth, &short);
            return;
        }
        self.put_lines(depth, &format!("{head} {{"));
        self.put_body(&block.body, path);
        self.put_lines(depth, "}");
    }

    fn put_argument(&mut self, depth: usize, name: &str, term: &HclValue) {
        let line = format!("{name} = {}", one_line(term));
        let value = match term {
            HclValue::Value(value) => value,
            HclValue::Reference(..) => return self.put_lines(depth, &line),
        };
        if let Value::String(text) = value {
            // A value of several lines keeps its own indent.
            let spelled = string_literal(text, depth);
            self.text.push_str(&"  ".repeat(depth));
            self.text.push_str(&format!("{name} = {spelled}\n"));
            self.line += 1 + spelled.matches('\n').count();
            return;
        }
        if depth * 2 + line.chars().count() <= COLUMNS {
            return self.put_lines(depth, &line);
        }
        match value {
            Value::Object(items) => self.put_broken(depth, name, ('{', '}'), map_entries(items)),
            Value::Array(items) => {
                let items = items.iter().map(|item| format!("{},", list_or_map(item)));
                self.put_broken(depth, name, ('[', ']'), items.collect());
            }
            _ => self.put_lines(depth, &line),
        }
    }

    /// Prints a list or map with one element per line.
    fn put_broken(&mut self, depth: usize, name: &str, marks: (char, char), items: Vec<String>) {
        self.put_lines(depth, &format!("{name} = {}", marks.0));
        for item in items {
            self.put_lines(depth + 1, &item);
        }
        self.put_lines(depth, &marks.1.to_string());
    }
}

fn one_line(term: &HclValue) -> String {
    match term {
        HclValue::Value(value) => list_or_map(value),
        HclValue::Reference(kind, name) if map_key(name) == *name => format!("{kind}.{name}"),
        HclValue::Reference(kind, name) => format!("{kind}[{}]", quoted_string(name)),
    }
}
