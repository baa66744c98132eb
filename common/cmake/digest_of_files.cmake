# cmake -DFILES=a;b -DSALT=text -DNAME=kName -DNAMESPACE=ns -DOUT=header.h -P digest_of_files.cmake
# Writes a header with a digest of what the files hold, for whom a change of them must not pass
# unseen.
set(text "${SALT}")
foreach(file IN LISTS FILES)
  file(SHA256 ${file} digest)
  string(APPEND text "${digest}")
endforeach()
string(SHA256 digest "${text}")
string(SUBSTRING ${digest} 0 32 digest)
string(CONCAT header
  "#pragma once\n\nnamespace ${NAMESPACE} {\n\n"
  "inline constexpr char ${NAME}[] = \"${digest}\";\n\n"
  "}  // namespace ${NAMESPACE}\n")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT "${old}" STREQUAL "${header}")
  file(WRITE ${OUT} "${header}")
endif()
