//! Paginated listings, with rate limits and a page limit.

use std::error::Error;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_async::future::pagination_stream::PaginationStream;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Maximum page size of most EC2 listings.
pub(crate) const PAGE: i32 = 1000;
/// Maximum number of pages: 500,000 entries exceed every account.
const PAGES: usize = 500;

/// Returns the entries of all pages of a listing, which `add` takes from each page. Exceeding the
/// page limit is an error, because a partial listing must not count as complete.
pub(crate) async fn collect<P, E, T>(
    account: &AwsClients,
    operation: &'static str,
    mut pages: PaginationStream<Result<P, SdkError<E, HttpResponse>>>,
    add: impl Fn(&P, &mut Vec<T>),
) -> Result<Vec<T>, AwsError>
where
    E: ProvideErrorMetadata + Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    let mut entries = Vec::new();
    for _ in 0..PAGES {
        account.buckets.read.wait_for_token().await;
        let Some(page) = pages.next().await else {
            return Ok(entries);
        };
        add(&page.map_aws_error(operation)?, &mut entries);
    }
    Err(AwsError::without_response(operation, "the listing does not end"))
}
