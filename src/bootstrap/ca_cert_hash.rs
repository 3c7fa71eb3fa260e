//! Hash of the cluster CA, with which `kubeadm join` verifies the API server.
//!
//! Source: kubeadm, `discovery.bootstrapToken.caCertHashes`: SHA-256 of the subject public key
//! info. RFC 5280 §4.1 specifies its position.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::bootstrap::BootstrapError;

/// Maximum number of certificates. A cluster has one, or two during rotation.
const CERTIFICATES_MAX: usize = 16;
const SEQUENCE: u8 = 0x30;
/// Context tag 0: the version. Certificates of version 1 omit it.
const VERSION: u8 = 0xa0;

/// Returns `sha256:…` of each certificate in base64-encoded PEM.
pub(super) fn certificate_hashes(ca: &str) -> Result<Vec<String>, BootstrapError> {
    let fault = BootstrapError::Authority;
    let pem = STANDARD.decode(ca.trim()).map_err(|_| fault("it is not base64"))?;
    let pem = String::from_utf8(pem).map_err(|_| fault("it is not PEM"))?;
    let mut all = Vec::new();
    for block in pem.split("-----BEGIN CERTIFICATE-----").skip(1).take(CERTIFICATES_MAX) {
        let body = block.split("-----END").next().unwrap_or_default();
        let body: String = body.split_ascii_whitespace().collect();
        let der = STANDARD.decode(body).map_err(|_| fault("a certificate is not base64"))?;
        let key = public_key(&der).ok_or(fault("a certificate is malformed"))?;
        let digest = Sha256::digest(key);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        all.push(format!("sha256:{hex}"));
    }
    match all.is_empty() {
        true => Err(fault("it has no certificate")),
        false => Ok(all),
    }
}

/// Returns the subject public key info of a certificate, with its tag and length.
fn public_key(der: &[u8]) -> Option<&[u8]> {
    let certificate = der_element(der, SEQUENCE)?.content;
    let mut rest = der_element(certificate, SEQUENCE)?.content;
    if rest.first() == Some(&VERSION) {
        rest = der_element(rest, VERSION)?.rest;
    }
    // Serial number, signature algorithm, issuer, validity, subject.
    for _ in 0..5 {
        rest = der_element(rest, *rest.first()?)?.rest;
    }
    Some(der_element(rest, SEQUENCE)?.whole)
}

/// One element of DER: tag, length, content.
struct Element<'a> {
    whole: &'a [u8],
    content: &'a [u8],
    rest: &'a [u8],
}

fn der_element(bytes: &[u8], tag: u8) -> Option<Element<'_>> {
    let (&first_tag, after) = bytes.split_first()?;
    let (&first, after) = after.split_first()?;
    let (length, head) = match first {
        0..=0x7f => (usize::from(first), 0),
        // No certificate needs more than four length bytes.
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let bytes = after.get(..count)?;
            let length = bytes.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
            (length, count)
        }
        _ => return None,
    };
    let content = after.get(head..head.checked_add(length)?)?;
    let end = 2 + head + length;
    (first_tag == tag).then_some(Element { whole: &bytes[..end], content, rest: &bytes[end..] })
}
