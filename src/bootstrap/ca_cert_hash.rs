//! Hash of the cluster CA, with which `kubeadm join` verifies the API server.
//!
//! Source: kubeadm, `discovery.bootstrapToken.caCertHashes`: SHA-256 of the subject public key
//! info. RFC 5280 §4.1 specifies the position of this info in a certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use der::asn1::SequenceRef;
use der::{Decode as _, Reader as _, SliceReader, Tag, TagNumber};
use sha2::{Digest as _, Sha256};

use crate::bootstrap::BootstrapError;

/// Maximum number of certificates. A cluster has one CA certificate, or two during a rotation.
const CERTIFICATES_MAX: usize = 16;
/// Context tag 0: the version. Certificates of version 1 omit this field.
const VERSION: Tag = Tag::ContextSpecific { constructed: true, number: TagNumber(0) };

/// Returns `sha256:…` of each certificate in base64-encoded PEM.
pub(super) fn certificate_hashes(ca: &str) -> Result<Vec<String>, BootstrapError> {
    let fault = BootstrapError::Authority;
    let pem = STANDARD.decode(ca.trim()).map_err(|_| fault("it is not base64"))?;
    let pem = String::from_utf8(pem).map_err(|_| fault("it is not PEM"))?;
    let mut all = Vec::new();
    for block in pem.split("-----BEGIN CERTIFICATE-----").skip(1).take(CERTIFICATES_MAX) {
        let body = block.split("-----END").next().unwrap_or_default();
        let body: String = body.split_ascii_whitespace().collect();
        let certificate =
            STANDARD.decode(body).map_err(|_| fault("a certificate is not base64"))?;
        let key = public_key(&certificate).map_err(|_| fault("a certificate is malformed"))?;
        let digest = Sha256::digest(key);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        all.push(format!("sha256:{hex}"));
    }
    match all.is_empty() {
        true => Err(fault("it has no certificate")),
        false => Ok(all),
    }
}

/// Returns the subject public key info of a certificate, with its tag and length. Other fields are
/// skipped and not checked, because kubeadm checks them.
fn public_key(certificate: &[u8]) -> der::Result<&[u8]> {
    let certificate: &SequenceRef = SliceReader::new(certificate)?.decode()?;
    let signed: &SequenceRef = SliceReader::new(certificate.as_bytes())?.decode()?;
    let mut fields = SliceReader::new(signed.as_bytes())?;
    if Tag::peek(&fields)? == VERSION {
        fields.tlv_bytes()?;
    }
    // Serial number, signature algorithm, issuer, validity, subject.
    for _ in 0..5 {
        fields.tlv_bytes()?;
    }
    let key = fields.tlv_bytes()?;
    <&SequenceRef>::from_der(key)?;
    Ok(key)
}
