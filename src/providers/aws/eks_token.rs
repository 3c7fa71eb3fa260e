//! Creates EKS tokens: a presigned STS call that proves the identity.
//!
//! Source: the EKS user guide and aws-iam-authenticator: `k8s-aws-v1.` and the URL in base64, with
//! a signature that includes the header `x-k8s-aws-id`; valid for 15 minutes.

use std::error::Error;
use std::time::Duration;

use aws_config::SdkConfig;
use aws_credential_types::provider::ProvideCredentials;
use aws_sdk_sts::config::endpoint::{DefaultResolver, Params, ResolveEndpoint};
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
    #[error("cannot find the endpoint of STS in region {0:?}: {1}")]
    Endpoint(String, String),
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
    let host = sts_host(region).await?;
    let signed = signed_url(&credentials.into(), region, &host, cluster, now);
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
    host: &str,
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
    let url = format!("https://{host}/?Action=GetCallerIdentity&Version=2011-06-15");
    let headers = [("host", host), ("x-k8s-aws-id", cluster)];
    let request =
        SignableRequest::new("GET", url.clone(), headers.into_iter(), SignableBody::Bytes(&[]))?;
    let signed = aws_sigv4::http_request::sign(request, &parameters.into())?;
    let mut request = http::Request::builder().uri(url).body(())?;
    signed.into_parts().0.apply_to_request_http1x(&mut request);
    Ok(request.uri().to_string())
}

/// Returns the host of STS in a region, as the SDK knows it. The API servers of EKS accept only the
/// hosts of their partition.
async fn sts_host(region: &str) -> Result<String, TokenError> {
    let error = |why: String| TokenError::Endpoint(region.to_owned(), why);
    let params = Params::builder().region(region).build();
    let params = params.map_err(|cause| error(text::error_chain(&cause)))?;
    let endpoint = DefaultResolver::new().resolve_endpoint(&params).await;
    let endpoint = endpoint.map_err(|cause| error(cause.to_string()))?;
    let host = endpoint.url().strip_prefix("https://");
    host.map(str::to_owned).ok_or_else(|| error(endpoint.url().to_owned()))
}

#[cfg(test)]
mod tests {
    use aws_config::SdkConfig;
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    use aws_smithy_types::base64;

    use super::{create_token, sts_host};
    use crate::catalog::region::Region;
    use crate::providers::aws::clients::pricing_region;

    /// Every region that the SDK knows, by partition: the domain of STS, and the region that serves
    /// the price list. Without one, the prices that ship apply.
    const REGIONS: [(&str, &str, &str); 9] = [
        (
            "us-east-1 us-east-2 us-west-1 us-west-2 ca-central-1 ca-west-1 mx-central-1 sa-east-1 \
             af-south-1 il-central-1 me-central-1 me-south-1",
            "amazonaws.com",
            "us-east-1",
        ),
        (
            "eu-central-1 eu-central-2 eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 \
             eu-west-3",
            "amazonaws.com",
            "eu-central-1",
        ),
        (
            "ap-east-1 ap-east-2 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 \
             ap-south-2 ap-southeast-1 ap-southeast-2 ap-southeast-3 ap-southeast-4 \
             ap-southeast-5 ap-southeast-6 ap-southeast-7",
            "amazonaws.com",
            "ap-south-1",
        ),
        ("cn-north-1 cn-northwest-1", "amazonaws.com.cn", "cn-northwest-1"),
        ("us-gov-east-1 us-gov-west-1", "amazonaws.com", ""),
        ("eusc-de-east-1", "amazonaws.eu", ""),
        ("us-iso-east-1 us-iso-west-1", "c2s.ic.gov", ""),
        ("us-isob-east-1 us-isob-west-1 eu-isoe-west-1", "", ""),
        ("us-isof-east-1 us-isof-south-1", "csp.hci.ic.gov", ""),
    ];

    #[tokio::test]
    async fn each_region_has_the_sts_host_and_price_list_of_its_partition() {
        let shipped = Region::shipped();
        for (regions, domain, priced) in REGIONS {
            for region in regions.split_whitespace() {
                let domain = match region {
                    "eu-isoe-west-1" => "cloud.adc-e.uk",
                    _ if domain.is_empty() => "sc2s.sgov.gov",
                    _ => domain,
                };
                let host = sts_host(region).await.expect("a host");
                assert_eq!(host, format!("sts.{region}.{domain}"));
                assert_eq!(pricing_region(region).unwrap_or_default(), priced, "{region}");
                let source = Region::with_shipped_prices(region, &shipped).source.to_string();
                println!("{region}: {host}, price list of {priced:?}, before that {source}");
            }
        }
        for wrong in ["", "eu west 1", "-", "a.b/c"] {
            let error = sts_host(wrong).await.expect_err("no region").to_string();
            assert!(error.starts_with("cannot find the endpoint of STS in region"), "{error}");
        }
    }

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
