//! Creates EKS tokens: a presigned STS call that proves the identity.
//!
//! Source: the EKS user guide and aws-iam-authenticator: `k8s-aws-v1.` and the URL in base64, with
//! a signature that includes the header `x-k8s-aws-id`; valid for 15 minutes.

use std::error::Error;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_runtime_api::client::identity::Identity;
use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use crate::host::{clock, text};
use crate::kubernetes::token_layer::BearerToken;

/// Lifetime of a token in EKS, less a minute for clock skew.
const LIFE: SignedDuration = SignedDuration::from_mins(14);
/// Validity of the presigned call, which EKS executes immediately.
const SIGNED: Duration = Duration::from_secs(60);
/// Timeout of loading credentials, which may assume a role.
const CREDENTIALS: Duration = Duration::from_secs(20);

/// Why a token cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error(
        "cannot find AWS credentials: the default chain has none; set a profile, a role or a \
             key"
    )]
    NoProvider,
    #[error("cannot find AWS credentials within {} s", CREDENTIALS.as_secs())]
    Late,
    #[error("cannot find AWS credentials: {0}")]
    Credentials(String),
    #[error("cannot sign a call to STS: {0}")]
    Sign(String),
}

/// Creates a token for an EKS cluster.
pub(crate) async fn create_token(
    config: &SdkConfig,
    region: &str,
    cluster: &str,
) -> Result<BearerToken, TokenError> {
    let provider = config.credentials_provider().ok_or(TokenError::NoProvider)?;
    let credentials = timeout(CREDENTIALS, provider.provide_credentials()).await;
    let credentials = credentials.map_err(|_| TokenError::Late)?;
    let credentials =
        credentials.map_err(|error| TokenError::Credentials(text::error_chain(&error)))?;
    let now = clock::now();
    let signed = signed_url(&credentials.into(), region, cluster, now);
    let url = signed.map_err(|error| TokenError::Sign(error.to_string()))?;
    let text = aws_smithy_types::base64::encode(url);
    let text = text.replace('+', "-").replace('/', "_");
    Ok(BearerToken {
        text: format!("k8s-aws-v1.{}", text.trim_end_matches('=')),
        until: Some(now.checked_add(LIFE).unwrap_or(now)),
    })
}

/// Returns the URL of a presigned `GetCallerIdentity` call that is valid for one cluster.
fn signed_url(
    identity: &Identity,
    region: &str,
    cluster: &str,
    now: Timestamp,
) -> Result<String, Box<dyn Error>> {
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(SIGNED);
    let parameters = SigningParams::builder()
        .identity(identity)
        .region(region)
        .name("sts")
        .time(now.into())
        .settings(settings)
        .build()?;
    let host = sts_host(region);
    let url = format!("https://{host}/?Action=GetCallerIdentity&Version=2011-06-15");
    let headers = [("host", host.as_str()), ("x-k8s-aws-id", cluster)];
    let request =
        SignableRequest::new("GET", url.clone(), headers.into_iter(), SignableBody::Bytes(&[]))?;
    let signed = aws_sigv4::http_request::sign(request, &parameters.into())?;
    let mut request = http::Request::builder().uri(url).body(())?;
    signed.into_parts().0.apply_to_request_http1x(&mut request);
    Ok(request.uri().to_string())
}

/// The STS endpoint of a region.
fn sts_host(region: &str) -> String {
    let domain = match region.split('-').next() {
        Some("cn") => "amazonaws.com.cn",
        _ => "amazonaws.com",
    };
    format!("sts.{region}.{domain}")
}

#[cfg(test)]
mod tests {
    use aws_config::SdkConfig;
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    use aws_smithy_types::base64;

    use super::create_token;

    #[tokio::test]
    async fn eks_token_is_a_signed_request_for_one_cluster() {
        let credentials =
            Credentials::new("AKIDEXAMPLE", "secret", Some("session".into()), None, "test");
        let provider = SharedCredentialsProvider::new(credentials);
        let config = SdkConfig::builder().credentials_provider(provider).build();
        let prod = create_token(&config, "eu-west-1", "prod").await.expect("a token");
        let text = prod.text.strip_prefix("k8s-aws-v1.").expect("its version");
        assert!(!text.contains(['=', '+', '/']), "{text}");
        let mut padded = text.replace('-', "+").replace('_', "/");
        while padded.len() % 4 > 0 {
            padded.push('=');
        }
        let url = String::from_utf8(base64::decode(padded).expect("base64")).expect("text");
        let begin = "https://sts.eu-west-1.amazonaws.com/?Action=GetCallerIdentity";
        assert!(url.starts_with(begin), "{url}");
        for part in [
            "X-Amz-Expires=60",
            "X-Amz-SignedHeaders=host%3Bx-k8s-aws-id",
            "X-Amz-Credential=AKIDEXAMPLE%2F",
            "%2Feu-west-1%2Fsts%2Faws4_request",
            "X-Amz-Security-Token=session",
            "X-Amz-Signature=",
        ] {
            assert!(url.contains(part), "{part} in {url}");
        }
        let other = create_token(&config, "eu-west-1", "other").await.expect("a token");
        assert_ne!(prod.text, other.text, "the token is signed for the cluster");
    }
}
