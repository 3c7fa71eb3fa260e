//! MIME multipart archives for cloud-init and nodeadm.
//!
//! Source: RFC 2046 §5.1; cloud-init, user data formats.

use crate::bootstrap::{BootstrapError, is_content};

/// Content type of a shell script.
pub(super) const SHELL: &str = "text/x-shellscript; charset=\"us-ascii\"";
/// Content type of a cloud-init configuration.
const CLOUD_CONFIG: &str = "text/cloud-config; charset=\"us-ascii\"";
/// The boundary of Karpenter's archives.
const BOUNDARY: &str = "//";

/// One part of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MimePart {
    /// Headers with one or more lines each, as written.
    headers: String,
    /// The body.
    body: String,
}

impl MimePart {
    /// Creates a part with this content type.
    pub(super) fn new(content_type: &str, body: impl Into<String>) -> Self {
        Self { headers: format!("Content-Type: {content_type}"), body: body.into() }
    }
}

/// Writes an archive with these parts. Carriage returns are removed, because bash does not ignore
/// them.
pub(super) fn write_archive(parts: &[MimePart]) -> String {
    // The content of a part must not end the archive. The boundary has one slash more than any line
    // that could end the archive.
    let lines = parts.iter().flat_map(|part| part.body.lines());
    let slashes = lines.filter_map(|line| {
        let rest = line.strip_prefix("--")?;
        Some(rest.len() - rest.trim_start_matches('/').len())
    });
    let longest = slashes.max().filter(|length| *length >= BOUNDARY.len());
    let boundary = longest.map_or(BOUNDARY.to_owned(), |length| "/".repeat(length + 1));
    let mut out =
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{boundary}\"\n\n");
    for part in parts {
        out.push_str(&format!("--{boundary}\n{}\n\n", part.headers));
        out.push_str(&part.body);
        if !part.body.ends_with('\n') {
            out.push('\n');
        }
    }
    out.push_str(&format!("--{boundary}--\n"));
    out.replace('\r', "")
}

/// Returns true if the text is an archive, which starts with one of two headers.
pub(super) fn is_archive(text: &str) -> bool {
    ["MIME-Version:", "Content-Type:"].iter().any(|header| has_header(text, header))
}

fn has_header(text: &str, header: &str) -> bool {
    let start = text.trim_start().get(..header.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(header))
}

/// Returns true if cloud-init recognizes the format of the text and can process it.
pub(super) fn for_cloud_init(text: &str) -> bool {
    text.starts_with("#!") || text.starts_with("#cloud-config") || is_archive(text)
}

/// Splits the user's own user data into parts. Text that is not an archive is one part. Its type is
/// the return value of `other` if cloud-init does not recognize its first line.
pub(super) fn user_parts(
    text: &str,
    format: &'static str,
    other: impl FnOnce(&str) -> &'static str,
) -> Result<Vec<MimePart>, BootstrapError> {
    let text = text.replace("\r\n", "\n");
    if is_archive(&text) {
        return read_archive(text.trim_start())
            .map_err(|reason| BootstrapError::UserData { format, reason: reason.to_owned() });
    }
    if text.starts_with("#!") {
        return Ok(vec![MimePart::new(SHELL, text)]);
    }
    if text.starts_with("#cloud-config") {
        return Ok(vec![MimePart::new(CLOUD_CONFIG, text)]);
    }
    if !text.lines().any(is_content) {
        return Ok(Vec::new());
    }
    let kind = other(&text);
    Ok(vec![MimePart::new(kind, text)])
}

/// Splits the headers from the content after the empty line.
fn split_headers(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('\n') {
        Some(body) => Some(("", body)),
        None => text.split_once("\n\n"),
    }
}

fn read_archive(text: &str) -> Result<Vec<MimePart>, &'static str> {
    const FAULT: &str = "it starts as a MIME archive, but its headers are malformed";
    let (headers, body) = split_headers(text).ok_or(FAULT)?;
    let mut content_type = None;
    for (name, value) in header_fields(headers).ok_or(FAULT)? {
        if name.eq_ignore_ascii_case("content-type") {
            content_type = Some(value);
        }
    }
    let content_type = content_type.ok_or("its MIME archive has no Content-Type")?;
    let lower = content_type.to_ascii_lowercase();
    if !lower.starts_with("multipart/") {
        return Err("its MIME archive is of no type multipart/*");
    }
    let boundary =
        header_parameter(&content_type, "boundary").ok_or("its MIME archive has no boundary")?;
    let (open, close) = (format!("--{boundary}"), format!("--{boundary}--"));
    let mut parts: Vec<String> = Vec::new();
    for line in body.split('\n').take_while(|line| line.trim_end() != close) {
        if line.trim_end() == open {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
        .iter()
        .map(|text| {
            let (headers, body) =
                split_headers(text).ok_or("a part of its MIME archive has no headers")?;
            header_fields(headers).ok_or("a part of its MIME archive has malformed headers")?;
            let headers = match headers {
                "" => "Content-Type: text/plain",
                headers => headers,
            };
            Ok(MimePart { headers: headers.to_owned(), body: body.to_owned() })
        })
        .collect()
}

/// Returns headers by name, with continuation lines joined. `None` if a line is not a header.
fn header_fields(headers: &str) -> Option<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in headers.lines() {
        if line.starts_with([' ', '\t']) {
            let (_, value) = all.last_mut()?;
            value.push(' ');
            value.push_str(line.trim());
            continue;
        }
        let (name, value) = line.split_once(':')?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_graphic()) {
            return None;
        }
        all.push((name.to_owned(), value.trim().to_owned()));
    }
    Some(all)
}

/// Returns a parameter of a header value.
fn header_parameter(value: &str, name: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (text, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        }
        rest = left.split_once(';')?.1;
    }
}
