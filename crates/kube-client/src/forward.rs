//! Forwards the requests of another program with the credential of this client.

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Method, Request, Response};
use http_body_util::Full;

use super::body::ResponseBody;
use super::transport::StreamPermit;
use super::{ApiClient, ApiError};

/// A response that is passed on while it arrives.
#[derive(Debug)]
pub struct ForwardedResponse {
    /// The head and the body.
    pub response: Response<ResponseBody>,
    /// Must be kept until the body has been read.
    pub permit: Option<StreamPermit>,
}

impl ApiClient {
    /// Sends a request to the server and returns its response unread. `headers` are sent unchanged, with the credential
    /// of this client added. The caller checks the request, and sets deadlines. A request without effects on the server
    /// is repeated once if the connection ended before a response.
    ///
    /// # Errors
    /// The server is not reachable, or the connection ended.
    pub async fn forward(
        &self,
        method: &Method,
        path_and_query: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<ForwardedResponse, ApiError> {
        let mut may_repeat = method == Method::GET;
        loop {
            let invalid = |error: http::Error| ApiError::Misbehaving(error.to_string());
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = self.uri(path_and_query).map_err(invalid)?;
            *request.headers_mut() = headers.clone();
            match self.exchange_authorized(request).await {
                Ok((response, permit)) => return Ok(ForwardedResponse { response, permit }),
                Err(error) => {
                    let (path, _) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
                    let error =
                        ApiError::from_exchange(&format!("{method} {path}"), error.as_ref());
                    let was_interrupted = matches!(error, ApiError::Broken { .. });
                    if !std::mem::take(&mut may_repeat) || !was_interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}
