// Shows the document of the gateway that this page came from.
window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#document",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  // The document is not sent to anybody to be validated.
  validatorUrl: null,
});
